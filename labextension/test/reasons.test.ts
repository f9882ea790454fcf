import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { english } from '../src/state/format';
import { namer, sentence } from '../src/state/reasons';
import { ISnapshot } from '../src/state/snapshot';
import said from '../../tests/data/reasons.json';
import { device, resting, session, snapshotOf } from './states';

const there: ISnapshot = snapshotOf(
  device([session({ id: 'a', name: 'a.ipynb' })], {
    resting: [resting({ id: 'b', name: 'b.ipynb' })]
  })
);

const { TZ } = process.env;

describe('reasons', () => {
  beforeEach(() => {
    process.env.TZ = 'UTC';
  });
  afterEach(() => {
    process.env.TZ = TZ;
  });

  it.each(said)('make the sentence "$sentence"', row => {
    const name = namer(there, one => one.name, english);
    expect(sentence(row.why, name, english)).toBe(row.sentence);
  });

  it.each([
    ['UTC', '10:00'],
    ['Asia/Kolkata', '15:30'],
    ['Pacific/Honolulu', '00:00']
  ])('have times of day on the clock of a page in %s', (zone, until) => {
    process.env.TZ = zone;
    const why = [
      { code: 'throttled_for_reservation', who: 'course', until: 1794909600 }
    ];
    expect(sentence(why, String, english)).toBe(
      `throttled: course has reserved the device until ${until}`
    );
  });
});
