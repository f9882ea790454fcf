import { beforeEach, describe, expect, it } from 'vitest';
import { aged } from '../../src/state/aging';
import { english } from '../../src/state/format';
import { inThreeWords } from '../../src/state/sentences';
import { admin, newPage, show, showDevice, texts, view } from './looks';
import { device, running, session, snapshotOf, turn, waiting } from '../states';

beforeEach(newPage);

describe('the headline', () => {
  it('says which notebook runs, which is next and when', () => {
    show([running, waiting]);
    expect(texts('.jp-GpuShare-headline')).toEqual([
      'alice.ipynb has been running for 12 s. 1 waiting; bob.ipynb is next, in about 0:10.'
    ]);
  });

  it('counts down without a new snapshot, and promises nothing unknown', () => {
    show([running, waiting], admin, 9500);
    expect(texts('.jp-GpuShare-headline')[0]).toContain('bob.ipynb is next.');
    expect(texts('.jp-GpuShare-expected')).toEqual(['', 'next']);
    // an estimate that has run out was wrong: what is not known is never soon
    view.tick(10_500);
    const unknown = 'bob.ipynb is next, after an unknown wait.';
    expect(texts('.jp-GpuShare-headline')[0]).toContain(unknown);
    show([running, session({ ...waiting, expected_wait_seconds: null })]);
    expect(texts('.jp-GpuShare-headline')[0]).toContain(unknown);
  });

  it('says of a bound that it is one, and of a wait behind an unknown one nothing', () => {
    const bound = session({
      ...waiting,
      expected_wait_seconds: 64,
      expected_wait_is_bound: true
    });
    const last = { ...bound, id: 'c', name: 'c.ipynb', position: 2 };
    show([running, bound, { ...last, expected_wait_seconds: 90 }]);
    expect(texts('.jp-GpuShare-headline')[0]).toContain(
      'bob.ipynb is next, in at most 1:04.'
    );
    const expected = () => texts('.jp-GpuShare-expected').slice(1);
    expect(expected()).toEqual(['at most 1:04', 'at most 1:30']);
    view.tick(65_000);
    expect(expected()).toEqual(['unknown', 'unknown']);
  });

  it('calls no notebook idle whose cell runs without a turn', () => {
    const busy = session({ ...running, state: 'idle', busy: true });
    const state = snapshotOf(device([busy]));
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-headline')).toEqual([
      'Free. No cell that runs needs a turn now.'
    ]);
    expect(texts('.jp-GpuShare-group')).toEqual(['Not in the queue (1)']);
    expect(inThreeWords(state, busy, english)).toBe('○ host: busy');
  });

  it('calls no device idle before the notebooks have come back', () => {
    const idle = session({ ...running, state: 'idle' });
    const state = snapshotOf(device([idle]));
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-headline')[0]).toContain('Idle.');
    state.broker = { ...state.broker, recovering: true };
    view.update({ state: { ...state }, receivedAt: 0 });
    expect(texts('.jp-GpuShare-headline')).toEqual([
      'Which notebooks run or wait is not known yet.'
    ]);
  });
});

describe('quick turns', () => {
  const quick = (state: 'running' | 'waiting') =>
    snapshotOf(
      device(
        [
          session({
            ...running,
            state,
            position: state === 'waiting' ? 1 : null
          }),
          state === 'waiting'
            ? session({ ...waiting, state: 'running', position: null })
            : waiting
        ],
        {
          turns: [
            turn({ began: 2, ended: null, held: 1 }),
            turn({ session: 'b', began: 1.5, ended: 0.5, held: 0.5 })
          ]
        }
      )
    );

  it('do not make the view jump', () => {
    view.update({ state: quick('running'), receivedAt: 0 });
    const [headline, table] = ['.jp-GpuShare-headline', 'table'].map(texts);
    const lane = texts('.jp-GpuShare-member');
    expect(headline).toEqual(['alice.ipynb and bob.ipynb take turns.']);
    view.update({ state: quick('waiting'), receivedAt: 0 });
    expect(texts('.jp-GpuShare-headline')).toEqual(headline);
    expect(texts('table')).toEqual(table);
    expect(texts('.jp-GpuShare-member')).toEqual(lane);
    expect(texts('.jp-GpuShare-group')).toEqual(['Taking turns (2)']);
  });

  it('go on while one of those that take them loads a batch', () => {
    const groups = (ended: number, busy: boolean) => {
      const loading = session({
        ...waiting,
        state: 'idle',
        position: null,
        busy
      });
      const turns = [
        turn({ began: 1, ended: null, held: 0.4 }),
        turn({ session: 'b', began: ended + 1, ended, held: 0.4 })
      ];
      showDevice([running, loading], { turns });
      return texts('.jp-GpuShare-group');
    };
    const apart = ['Running (1)', 'Not in the queue (1)'];
    expect(groups(0.2, true)).toEqual(['Taking turns (2)']);
    expect(groups(0.2, false)).toEqual(apart); // its cell has ended
    expect(groups(3.5, true)).toEqual(apart); // it does something else
  });

  it('are shown by names where they are few', () => {
    const named = (count: number) => {
      const all = Array.from({ length: count }, (_, index) =>
        session({ id: `${index}`, name: `${index}.ipynb`, state: 'running' })
      );
      const turns = all.map(({ id }) =>
        turn({ session: id, began: 2, ended: null, held: 1 })
      );
      showDevice(all, { turns });
      return texts('.jp-GpuShare-headline')[0];
    };
    expect(named(3)).toBe('0.ipynb, 1.ipynb and 2.ipynb take turns.');
    expect(named(5)).toBe('0.ipynb, 1.ipynb and 3 others take turns.');
  });

  it('of a large round do not make the view jump either', () => {
    // twenty, a quarter of a second each: a session's next turn is five seconds
    // away
    const count = 20;
    const told = (at: number) => {
      const all = Array.from({ length: count }, (_, index) =>
        session({
          id: `${index}`,
          state: index === at ? 'running' : 'waiting',
          position: index === at ? null : (count + index - at) % count
        })
      );
      const turns = Array.from({ length: 2 * count }, (_, back) =>
        turn({
          session: `${(2 * count + at - back) % count}`,
          began: back / 4 + 0.1,
          ended: back === 0 ? null : back / 4 - 0.15,
          held: back === 0 ? 0.1 : 0.25
        })
      ).reverse();
      showDevice(all, { turns });
      return texts('.jp-GpuShare-group');
    };
    for (let at = 0; at < count; at++) {
      expect(told(at)).toEqual(['Taking turns (20)']);
    }
  });

  it('are over when a session has a long one', () => {
    const state = quick('waiting');
    state.devices[0].turns = [
      turn({ began: 11, ended: 9.2, held: 0.9 }),
      turn({ session: 'b', began: 11, ended: 10.5, held: 0.2 }),
      turn({ session: 'b', began: 9.2, ended: null, held: 9.2 })
    ];
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-group')).toEqual(['Running (1)', 'Queue (1)']);
  });

  it('stop when a turn lasts, though no event says so', () => {
    // a and b took turns; now c has an iteration of 45 s, which began a moment ago
    const all = ['a', 'b', 'c'].map((id, index) =>
      session({
        id,
        name: `${id}.ipynb`,
        state: id === 'c' ? 'running' : 'waiting',
        position: id === 'c' ? null : index + 1,
        waiting_seconds: id === 'c' ? null : 0.1
      })
    );
    const turns = [
      turn({ session: 'a', began: 2, ended: 0.2, held: 0.9 }),
      turn({ session: 'b', began: 1.9, ended: 0.1, held: 0.9 }),
      turn({ session: 'c', began: 0.1, ended: null, held: 0.1 })
    ];
    showDevice(all, { turns });
    const told: [number, string, string][] = [0, 2, 4, 29].map(second => {
      view.tick(1000 * second);
      return [
        second,
        texts('.jp-GpuShare-headline')[0]!,
        texts('.jp-GpuShare-group').join()
      ];
    });
    const turning = 'Running (1),Taking turns (2)';
    const lasting = 'Running (1),Queue (2)';
    const next = '2 waiting; a.ipynb is next, after an unknown wait.';
    expect(told).toEqual([
      [0, 'c.ipynb is running. a.ipynb and b.ipynb take turns.', turning],
      [2, 'c.ipynb is running. a.ipynb and b.ipynb take turns.', turning],
      [4, `c.ipynb has been running for 4 s. ${next}`, lasting],
      [29, `c.ipynb has been running for 29 s. ${next}`, lasting]
    ]);
    expect(texts('.jp-GpuShare-since')).toEqual(['0:29', '0:29', '0:29']);
  });

  it('stop when one of those that took them continues', () => {
    const state = quick('running');
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-group')).toEqual(['Taking turns (2)']);
    view.tick(30_000);
    expect(texts('.jp-GpuShare-group')).toEqual(['Running (1)', 'Queue (1)']);
    expect(texts('.jp-GpuShare-reason').join()).not.toContain('short turns');
    expect(inThreeWords(aged(state, 0), running, english)).toBe(
      '▶ host: takes turns'
    );
    expect(inThreeWords(aged(state, 30), running, english)).toBe(
      '▶ host: running for 31 s'
    );
  });

  it('continue in one lane while a long turn holds another', () => {
    const lanes = [1, 2].map(id => ({
      id,
      bytes: 1,
      holder: null,
      members: [],
      beside: null,
      width_bytes: 0
    }));
    const all = ['a', 'b', 'c', 'd'].map((id, index) =>
      session({
        id,
        name: `${id}.ipynb`,
        lane: index < 2 ? 1 : 2,
        state: index % 2 ? 'waiting' : 'running',
        position: index % 2 ? 1 : null,
        waiting_seconds: index % 2 ? 0.1 : null
      })
    );
    const turns = [
      turn({ session: 'b', began: 14, ended: 12.9, held: 0.5 }),
      turn({ session: 'a', began: 12.9, ended: null, held: 12.9 }),
      turn({ session: 'd', lane: 2, began: 1.5, ended: 0.1, held: 0.7 }),
      turn({ session: 'c', lane: 2, began: 1.4, ended: null, held: 0.7 })
    ];
    showDevice(all, { lanes, turns });
    expect(texts('.jp-GpuShare-headline')).toEqual([
      'a.ipynb has been running for 12 s. c.ipynb and d.ipynb take turns. 1 waiting; b.ipynb is next, after an unknown wait.'
    ]);
  });

  it('are not turns of several seconds', () => {
    const state = quick('running');
    state.devices[0].turns = [
      turn({ session: 'a', began: 8.5, ended: 4.5, held: 4 }),
      turn({ session: 'b', began: 4.5, ended: 0.5, held: 4 }),
      turn({ session: 'a', began: 0.5, ended: null, held: 0.5 })
    ];
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-group')).toEqual(['Running (1)', 'Queue (1)']);
  });

  it('leave sessions in the queue that have had none', () => {
    const third = session({
      id: 'c',
      name: 'carol.ipynb',
      state: 'waiting',
      position: 2,
      waiting_seconds: 9,
      expected_wait_seconds: null
    });
    const state = quick('running');
    state.devices[0].sessions.push(third);
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-headline')).toEqual([
      'alice.ipynb and bob.ipynb take turns. 1 waiting.'
    ]); // bob.ipynb is next
  });
});
