import autocannon from 'autocannon';

/** Load from a process of its own: one autocannon run, as JSON on the command line, its result on standard output. */
const options = JSON.parse(process.argv[2] as string) as autocannon.Options;
const result = await autocannon({ connections: 50, ...options });
process.stdout.write(
  JSON.stringify({
    perSecond: result.requests.average,
    p99Ms: result.latency.p99,
    failed: result.non2xx + result.errors,
  }),
);
