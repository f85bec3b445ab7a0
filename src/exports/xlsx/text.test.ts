import { describe, expect, test } from 'vitest';
import { truncate, xmlText } from './text.ts';

/** What a reader does: entities first (by its XML parser, which also knows no CR), then the escapes, left to right. */
const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"' };
const read = (xml: string) =>
  xml
    .replace(/\r\n?/g, '\n')
    .replace(/&(\w+);/g, (_, name: string) => ENTITIES[name] ?? '?')
    .replace(/_x([0-9a-fA-F]{4})_/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16)));

describe('a value longer than a cell', () => {
  test('is cut to 32,767 UTF-16 units including the dots', () => {
    expect(truncate('x'.repeat(32_767))).toBe('x'.repeat(32_767));
    expect(truncate('x'.repeat(32_768))).toBe(`${'x'.repeat(32_764)}...`);
    expect(truncate('é'.repeat(100_000))).toBe(`${'é'.repeat(32_764)}...`);
  });

  test('loses one unit more where the cut would part a surrogate pair', () => {
    expect(truncate('😀'.repeat(16_384))).toBe(`${'😀'.repeat(16_382)}...`);
    expect(truncate(`x${'😀'.repeat(16_384)}`)).toBe(`x${'😀'.repeat(16_381)}...`);
    expect(truncate(`x${'😀'.repeat(16_384)}`)).toHaveLength(32_766);
  });

  test('is measured without its escapes', () => {
    expect(truncate('\u0001'.repeat(32_767))).toBe('\u0001'.repeat(32_767));
    expect(truncate('&'.repeat(32_767))).toBe('&'.repeat(32_767));
  });
});

describe('text in XML', () => {
  test('keeps markup characters apart from markup', () => {
    expect(xmlText(`a<b>&amp;"c"]]>'`)).toBe(`a&lt;b&gt;&amp;amp;&quot;c&quot;]]&gt;'`);
  });

  test.each([
    ['\u0000', '_x0000_'],
    ['\u001f', '_x001F_'],
    ['\r\n', '_x000D_\n'],
    ['\t\n', '\t\n'],
    ['\u007f\u0085\u2028\ufeff', '\u007f\u0085\u2028\ufeff'],
    ['\ufffe\uffff', '_xFFFE__xFFFF_'],
    ['\ud800', '_xD800_'],
    ['\udc00\ud800x', '_xDC00__xD800_x'],
    ['😀', '😀'],
  ])('escapes what XML cannot hold, and nothing else: %j', (value, xml) => {
    expect(xmlText(value)).toBe(xml);
  });

  test.each([
    ['_x0001_', '_x005F_x0001_'],
    ['_x000d_', '_x005F_x000d_'],
    ['_x0041_x0042_', '_x005F_x0041_x005F_x0042_'],
    ['_x005F_', '_x005F_x005F_'],
    ['_x0041\u0001', '_x005F_x0041_x0001_'],
    ['_x00410_ _xZZZZ_ _X0041_ _x0041', '_x00410_ _xZZZZ_ _X0041_ _x0041'],
  ])('escapes the underscore of text that looks like an escape: %j', (value, xml) => {
    expect(xmlText(value)).toBe(xml);
  });

  test('reads back equal, whatever it is made of', () => {
    const pieces = [
      '_',
      'x',
      '_x',
      '0041',
      '00',
      '5F',
      'd',
      '\u0001',
      '\r',
      '\n',
      '&',
      '<',
      'é',
      '😀',
      '\ud83d',
      '\ude00',
    ];
    let seed = 1;
    for (let i = 0; i < 20_000; i++) {
      let value = '';
      for (let length = i % 12; length >= 0; length--) {
        seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
        value += pieces[(seed >>> 16) % pieces.length];
      }
      expect(read(xmlText(value))).toBe(value);
    }
  });
});
