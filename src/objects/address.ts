import { BlockList, isIPv4, isIPv6 } from 'node:net';

/** How far an address reaches: `public` the internet, `private` the operator's own networks, `forbidden` nobody's. */
export type Reach = 'public' | 'private' | 'forbidden';

type Subnet = [network: string, prefixBits: number];

/**
 * Never connected to, whoever allows it: link-local, "this host" (which means loopback to the kernel), multicast, and
 * the addresses where clouds give a machine its credentials (AWS, Google, Azure, Alibaba, Oracle).
 */
const forbidden: Subnet[] = [
  ['0.0.0.0', 8],
  ['100.100.100.200', 32],
  ['168.63.129.16', 32],
  ['169.254.0.0', 16],
  ['192.0.0.192', 32],
  ['224.0.0.0', 4],
  ['255.255.255.255', 32],
  ['::', 128],
  ['fd00:ec2::', 32],
  ['fd20:ce::254', 128],
  ['fe80::', 10],
  ['ff00::', 8],
];

/** Not reachable over the internet (IANA special-purpose registries, RFC 6890): an administrator may open them. */
const special: Subnet[] = [
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['240.0.0.0', 4],
  ['2001::', 23],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['3fff::', 20],
];

const blockList = (subnets: Subnet[]): BlockList => {
  const list = new BlockList();
  for (const [network, bits] of subnets) list.addSubnet(network, bits, isIPv4(network) ? 'ipv4' : 'ipv6');
  return list;
};
const forbiddenList = blockList(forbidden);
const specialList = blockList(special);
/** The only block of IPv6 that is routed on the internet (RFC 4291 §2.4). */
const globalUnicast = blockList([['2000::', 3]]);

/** How far `address`, an IP address in text, reaches; what is no address is forbidden. */
export function reachOf(address: string): Reach {
  const [bare = ''] = address.split('%'); // the zone of a link-local address
  if (isIPv4(bare)) return reachOfIPv4(bare);
  if (!isIPv6(bare) || forbiddenList.check(bare, 'ipv6')) return 'forbidden';
  const groups = groupsOf(bare);
  const inside = embeddedIPv4(groups);
  if (inside) {
    const reach = reachOfIPv4(inside.address);
    return reach === 'public' && !inside.routed ? 'private' : reach;
  }
  return globalUnicast.check(bare, 'ipv6') && !specialList.check(bare, 'ipv6') ? 'public' : 'private';
}

function reachOfIPv4(address: string): Reach {
  if (forbiddenList.check(address, 'ipv4')) return 'forbidden';
  return specialList.check(address, 'ipv4') ? 'private' : 'public';
}

/**
 * The IPv4 address that an IPv6 one leads to: mapped (RFC 4291 §2.5.5), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056);
 * `routed` where connecting to it is ordinary on the internet.
 */
function embeddedIPv4(groups: number[]): { address: string; routed: boolean } | undefined {
  const dotted = (high = 0, low = 0) => [high >> 8, high & 0xff, low >> 8, low & 0xff].join('.');
  const [first, second, third] = groups;
  const tail = dotted(groups[6], groups[7]);
  const zeroUntil = (end: number) => groups.slice(0, end).every((group) => group === 0);
  if (zeroUntil(5) && groups[5] === 0xffff) return { address: tail, routed: true };
  if (zeroUntil(6) && groups[6] !== 0) return { address: tail, routed: false };
  if (first === 0x64 && second === 0xff9b) return { address: tail, routed: third === 0 };
  if (first === 0x2002) return { address: dotted(second, third), routed: false };
  return undefined;
}

/** The eight groups of an IPv6 address, in whatever notation. */
function groupsOf(address: string): number[] {
  const canonical = new URL(`http://[${address}]`).hostname.slice(1, -1); // the URL standard writes IPv4 parts in hex
  const [left = '', right] = canonical.split('::');
  const numbers = (part: string) => (part === '' ? [] : part.split(':').map((group) => Number.parseInt(group, 16)));
  const head = numbers(left);
  const tail = numbers(right ?? '');
  return right === undefined ? head : [...head, ...Array<number>(8 - head.length - tail.length).fill(0), ...tail];
}
