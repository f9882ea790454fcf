import { describe, expect, it } from 'vitest';
import { english } from '../src/format';
import { namer, sentence } from '../src/reasons';
import { ISnapshot } from '../src/snapshot';
import said from '../../tests/data/reasons.json';
import { device, resting, session, snapshotOf } from './states';

const there: ISnapshot = snapshotOf(
  device([session({ id: 'a', name: 'a.ipynb' })], {
    resting: [resting({ id: 'b', name: 'b.ipynb' })]
  })
);

describe('reasons', () => {
  it.each(said)('make the sentence "$sentence"', row => {
    const name = namer(there, one => one.name, english);
    expect(sentence(row.why, name, english)).toBe(row.sentence);
  });
});
