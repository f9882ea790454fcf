import { describe, expect, it } from 'vitest';
import { bytes, clock, english, inOrder, summary } from '../src/format';
import { running, session, snapshot, waiting } from './states';

describe('bytes', () => {
  it.each([
    [0, '0 B'],
    [999, '999 B'],
    [1000, '0.98 KiB'],
    [1536, '1.50 KiB'],
    [10 * 2 ** 20, '10.0 MiB'],
    [128 * 2 ** 20, '128 MiB'],
    [80 * 2 ** 30, '80.0 GiB'],
    [5000 * 2 ** 40, '5000 TiB']
  ])('shows %d as %s', (count, text) => {
    expect(bytes(count)).toBe(text);
  });
});

describe('clock', () => {
  it.each([
    [-3, '0:00'],
    [7.9, '0:07'],
    [750, '12:30'],
    [3723, '1:02:03']
  ])('shows %d seconds as %s', (seconds, text) => {
    expect(clock(seconds)).toBe(text);
  });
});

describe('inOrder', () => {
  it('puts who runs first, then the queue by place, then the others', () => {
    const second = session({ id: 'c', state: 'waiting', place: 2 });
    const idle = session({ id: 'd' });
    const ids = inOrder([idle, second, waiting, running]).map(({ id }) => id);
    expect(ids).toEqual(['a', 'b', 'c', 'd']);
  });
});

describe('summary', () => {
  it('counts who runs and who waits', () => {
    const text = (...all: (typeof running)[]) =>
      summary(snapshot(...all), english);
    expect(text()).toBe('GPU: free');
    expect(text(running)).toBe('GPU: 1 running');
    expect(text(running, waiting)).toBe('GPU: 1 running, 1 waits');
    expect(text(running, waiting, waiting)).toBe('GPU: 1 running, 2 wait');
    expect(text(waiting)).toBe('GPU: 0 running, 1 waits');
  });

  it('says when the broker is away', () => {
    const away = { type: 'Error', code: 'lost', message: '' } as const;
    expect(summary(away, english)).toBe('GPU: broker away');
    expect(summary(null, english)).toBe('GPU: …');
  });
});
