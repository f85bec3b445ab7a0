import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import yauzl, { type Entry, type ZipFile } from 'yauzl';

/** A cell as Excel shows it; null for one that is not there. */
export type ReadCell = string | number | boolean | null;

/** Reads the sheets of a workbook, as far as our own ones need it: inline text, numbers, booleans. */
export async function readWorkbook(bytes: Buffer): Promise<Record<string, ReadCell[][]>> {
  const parts = await unzip(bytes);
  const sheets: Record<string, ReadCell[][]> = {};
  const relations = parts.get('xl/_rels/workbook.xml.rels') ?? '';
  for (const [, name = '', id] of (parts.get('xl/workbook.xml') ?? '').matchAll(
    /<sheet name="([^"]*)"[^>]*r:id="([^"]*)"/g,
  )) {
    const target = new RegExp(`Id="${id}"[^>]*Target="([^"]*)"`).exec(relations)?.[1];
    sheets[unescaped(name)] = readSheet(parts.get(`xl/${target}`) ?? '');
  }
  return sheets;
}

function readSheet(xml: string): ReadCell[][] {
  const rows: ReadCell[][] = [];
  for (const [, content = ''] of xml.matchAll(/<row [^>]*>(.*?)<\/row>/gs)) {
    const row: ReadCell[] = [];
    for (const [, letters = '', rest = '', inner = ''] of content.matchAll(/<c r="([A-Z]+)\d+"([^>]*)>(.*?)<\/c>/gs)) {
      const column = [...letters].reduce((sum, letter) => sum * 26 + letter.charCodeAt(0) - 64, 0) - 1;
      while (row.length < column) row.push(null);
      const value = /<(?:v|t)[^>]*>(.*?)<\/(?:v|t)>/s.exec(inner)?.[1] ?? '';
      row.push(rest.includes('inlineStr') ? unescaped(value) : rest.includes('t="b"') ? value === '1' : Number(value));
    }
    rows.push(row);
  }
  return rows;
}

const ENTITIES: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"' };

function unescaped(xml: string): string {
  return xml
    .replace(/&(amp|lt|gt|quot);/g, (_, name: string) => ENTITIES[name] as string)
    .replace(/_x([0-9A-Fa-f]{4})_/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}

/** The parts of a workbook by their names. */
export async function unzip(bytes: Buffer): Promise<Map<string, string>> {
  const zip = await promisify<Buffer, yauzl.Options, ZipFile>(yauzl.fromBuffer)(bytes, { lazyEntries: true });
  const parts = new Map<string, string>();
  await new Promise<void>((resolve, reject) => {
    zip.on('entry', (entry: Entry) => {
      zip.openReadStream(entry, (error, stream) => {
        if (error) return reject(error);
        text(stream).then((content) => {
          parts.set(entry.fileName, content);
          zip.readEntry();
        }, reject);
      });
    });
    zip.on('end', resolve).on('error', reject);
    zip.readEntry();
  });
  return parts;
}
