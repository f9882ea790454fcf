import { describe, expect, it } from 'vitest';
import { bytes, clock, english, fileName, lasting } from '../src/state/format';
import { DISCONNECTED, ofKernel, toChange } from '../src/state/notebook';
import { inThreeWords, summary } from '../src/state/sentences';
import { inOrder, isFree, isSameWait } from '../src/state/queue';
import {
  device,
  resting,
  running,
  session,
  snapshot,
  snapshotOf,
  viewer,
  waiting
} from './states';
import { IViewer } from '../src/state/snapshot';
import sizes from '../../tests/data/sizes.json';

describe('a name', () => {
  it.each([
    ['lessons/train.ipynb', 'train.ipynb'],
    ['train.py', 'train.py'],
    ['lr 1/2', 'lr 1/2'],
    ['<b>x</b>', '<b>x</b>']
  ])('%s is shown as %s', (name, shown) => {
    expect(fileName(name)).toBe(shown);
  });
});

describe('bytes', () => {
  it.each(sizes as [number, string][])('shows %d as %s', (count, text) => {
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

describe('lasting', () => {
  it.each([
    [45.9, '45 s'],
    [150, '2 min 30 s'],
    [720, '12 min'],
    [7500, '2 h 5 min']
  ])('shows %d seconds as %s', (seconds, text) => {
    expect(lasting(seconds, english)).toBe(text);
  });
});

describe('inOrder', () => {
  it('puts those that run first, then the queue by position, then the others', () => {
    const second = session({ id: 'c', state: 'waiting', position: 2 });
    const idle = session({ id: 'd' });
    const ids = inOrder([idle, second, waiting, running]).map(({ id }) => id);
    expect(ids).toEqual(['a', 'b', 'c', 'd']);
  });
});

describe('isFree', () => {
  it.each([
    [session(), true],
    [resting(), true],
    [session({ state: 'paused' }), true],
    [running, false],
    [waiting, false],
    [session({ state: 'throttled', waiting_seconds: 3 }), false],
    [session({ state: 'paused', waiting_seconds: 3 }), false],
    [session({ busy: true }), false]
  ])('tells whether a cell would not run twice: %#', (notebook, free) => {
    expect(isFree(notebook)).toBe(free);
  });
});

describe('isSameWait', () => {
  it.each([
    [{ ...waiting, waiting_seconds: 70 }, true],
    [{ ...waiting, device_seconds: 1 }, false],
    [{ ...waiting, position: null }, false],
    [resting(), false],
    [undefined, false]
  ])('is false after a turn, and where nothing waits: %#', (now, same) => {
    expect(isSameWait(waiting, now)).toBe(same);
  });
});

describe('summary', () => {
  it('counts running and waiting notebooks', () => {
    const text = (...all: (typeof running)[]) =>
      summary(snapshot(...all), english);
    expect(text()).toBe('○ host is free');
    const two = snapshotOf(device([]), device([], { name: 'cuda:0' }));
    expect(summary(two, english)).toBe('○ nothing runs');
    expect(text(running)).toBe('▶ host: 1 running');
    expect(text(running, waiting)).toBe('▶ host: 1 running, 1 waiting');
    const recovering = snapshot();
    recovering.broker = { ...recovering.broker, recovering: true };
    expect(summary(recovering, english)).toBe('… notebooks come back');
    const third = session({ ...waiting, id: 'c' });
    expect(text(running, waiting, third)).toBe('▶ host: 1 running, 2 waiting');
    // a notebook with several devices is on each of them
    expect(text(running, running, waiting)).toBe(
      '▶ host: 1 running, 1 waiting'
    );
  });

  it('says when the broker, or the server, is away', () => {
    const away = { type: 'Error', code: 'lost', message: '' } as const;
    expect(summary(away, english)).toBe('✕ broker is away');
    expect(summary({ ...away, code: DISCONNECTED }, english)).toBe(
      '✕ server is away'
    );
    expect(summary({ ...away, code: 'not_permitted' }, english)).toBe(
      '✕ broker refuses'
    );
    expect(summary(null, english)).toBe('… looking for broker');
  });
});

describe('inThreeWords', () => {
  const of = (changes: Parameters<typeof session>[0]) =>
    inThreeWords(snapshot(session(changes)), session(changes), english);
  const released = snapshotOf(device([], { resting: [resting()] }));

  it('tells device and state by a sign and a few words, without colour', () => {
    const texts = [
      of({ state: 'running' }),
      of({ state: 'overdue' }),
      of({ state: 'waiting', position: 2 }),
      of({ state: 'throttled' }),
      of({ state: 'paused' }),
      of({ state: 'paged_out' }),
      of({ state: 'idle' }),
      inThreeWords(released, resting(), english),
      inThreeWords(snapshot(), null, english),
      inThreeWords(snapshot(), undefined, english)
    ];
    expect(texts).toEqual([
      '▶ host: running for 12 s',
      '! host: overdue',
      '◔ host: queue position 2',
      '⊘ host: throttled',
      'Ⅱ host: paused',
      '↓ host: paged out',
      '○ host: idle',
      '☾ host: resting',
      '◌ GPU sharing: off',
      '… GPU sharing: not known yet'
    ]);
    expect(new Set(texts.map(text => text[0])).size).toBe(texts.length);
  });

  it('tells how long it will still take, where that is known', () => {
    const changes = { state: 'running', busy: true } as const;
    const seconds = [370, 9, null];
    expect(
      seconds.map(remaining_seconds => of({ ...changes, remaining_seconds }))
    ).toEqual([
      '▶ host: running for 12 s, about 6 min 10 s left',
      '▶ host: running for 12 s',
      '▶ host: running for 12 s'
    ]);
  });

  it('names all devices of a notebook that has several, and no other', () => {
    const on = (name: string, ...sessions: (typeof running)[]) =>
      device(sessions, { name, turns: [] });
    const state = snapshotOf(
      on('cuda:0', running),
      on('cuda:1', running),
      on('host', waiting)
    );
    const text = (of: typeof running) => inThreeWords(state, of, english);
    expect(text(running)).toBe('▶ cuda:0, cuda:1: running');
    expect(text(waiting)).toBe('◔ host: queue position 1');
  });
});

describe('ofKernel', () => {
  const state = snapshot(running, waiting);
  const knows = (kernels: Record<string, number>) =>
    viewer({ kernels, sees_processes: true });

  it('finds the session by the process of the kernel', () => {
    expect(ofKernel(state, knows({ k: 2 }), 'k', 'x.ipynb', [])?.id).toBe('b');
  });

  it('does not take another of the same name for one whose process is new', () => {
    const bob = { ...knows({ other: 2 }), user: 'bob' };
    expect(ofKernel(state, bob, 'k', 'b/bob.ipynb', [])).toBeNull();
  });

  it('finds a notebook that is released until its next cell: it still shares', () => {
    const rests = snapshotOf(device([running], { resting: [resting()] }));
    expect(ofKernel(rests, knows({ k: 3 }), 'k', 'x.ipynb', [])?.id).toBe('r');
  });

  it('finds the viewer’s own of that name where no process is known', () => {
    const bob = viewer({ user: 'bob' });
    const paths = ['a/bob.ipynb', 'x.ipynb'];
    const find = (who: IViewer, there = state, others: string[] = []) =>
      ofKernel(there, who, 'k', 'a/bob.ipynb', [...paths, ...others]);
    expect(find(bob)?.id).toBe('b');
    expect(find(viewer())).toBeNull();
    const gang = snapshotOf(device([waiting]), device([waiting]));
    expect(find(bob, gang)?.id).toBe('b');
    // of two, it is not known which one is meant
    expect(find(bob, state, ['b/bob.ipynb'])).toBeUndefined();
    const two = snapshot(waiting, session({ ...waiting, id: 'c' }));
    expect(find(bob, two)).toBeUndefined();
    // none has that name, so it does not share
    expect(find(bob, snapshot(running), ['b/bob.ipynb'])).toBeNull();
  });
});

describe('toChange', () => {
  const bob = viewer({ user: 'bob', sees_processes: true });

  it('is the viewer’s own session, unless it was found by its name alone', () => {
    expect(toChange(bob, waiting)).toBe(waiting);
    expect(toChange(bob, running)).toBeNull(); // alice’s
    // another server of this user may have one of that name
    expect(toChange({ ...bob, sees_processes: false }, waiting)).toBeNull();
  });

  it('is none where there is nothing to change', () => {
    expect(toChange(null, waiting)).toBeNull();
    expect(toChange(bob, null)).toBeNull();
    expect(toChange(bob, resting({ user: 'bob' }))).toBeNull();
  });
});
