import { beforeEach, describe, expect, it, vi } from 'vitest';
import { aged } from '../src/state/aging';
import {
  DISCONNECTED,
  english,
  inThreeWords,
  State
} from '../src/state/format';
import { IActions } from '../src/view/view_model';
import { ISessionView, IViewer } from '../src/state/snapshot';
import { GpuShareView } from '../src/view/view';
import {
  countedActions,
  device,
  emptyNode,
  resting,
  running,
  session,
  snapshot,
  snapshotOf,
  turn,
  viewer,
  waiting
} from './states';

const admin = viewer({ is_administrator: true });
const many = (count: number) => [
  running,
  ...Array.from({ length: count - 1 }, (_, index) =>
    session({
      id: `w${index}`,
      name: `n${index}.ipynb`,
      state: 'waiting',
      position: index + 1,
      waiting_seconds: 1
    })
  )
];

let node: HTMLElement;
let view: GpuShareView;
let actions: IActions;

beforeEach(() => {
  node = emptyNode();
  actions = countedActions();
  view = new GpuShareView(node, undefined, actions);
});

function show(sessions: ISessionView[], who: IViewer | null = admin, now = 0) {
  view.update(
    { state: snapshot(...sessions), receivedAt: 0, viewer: who },
    now
  );
}

const texts = (selector: string) =>
  [...node.querySelectorAll(selector)].map(found => found.textContent);
const all = <T extends Element>(selector: string) => [
  ...node.querySelectorAll<T>(selector)
];
const buttons = () => texts('button');
const press = (label: string) =>
  all<HTMLElement>('button')
    .find(
      found =>
        found.textContent === label ||
        found.getAttribute('aria-label') === label
    )!
    .click();
/** Choose without applying it yet, as a viewer does. */
function choose(policy: string) {
  const field = node.querySelector('select')!;
  field.value = policy;
  field.dispatchEvent(new Event('change'));
}
const widths = (selector: string) =>
  all<HTMLElement>(selector).map(part => parseFloat(part.style.width));

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
    // an estimate that has run out was wrong: what is not known is never soon
    view.tick(10_500);
    const unknown = 'bob.ipynb is next, after an unknown wait.';
    expect(texts('.jp-GpuShare-headline')[0]).toContain(unknown);
    show([running, session({ ...waiting, expected_wait_seconds: null })]);
    expect(texts('.jp-GpuShare-headline')[0]).toContain(unknown);
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
      const state = snapshotOf(device([running, loading], { turns }));
      view.update({ state, receivedAt: 0 });
      return texts('.jp-GpuShare-group');
    };
    const apart = ['Running (1)', 'Idle or paused (1)'];
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
      view.update({ state: snapshotOf(device(all, { turns })), receivedAt: 0 });
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
      view.update({ state: snapshotOf(device(all, { turns })), receivedAt: 0 });
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
    view.update({ state: snapshotOf(device(all, { turns })), receivedAt: 0 });
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
    expect(texts('.jp-GpuShare-reason').join()).not.toContain('a moment each');
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
    const state = snapshotOf(device(all, { lanes, turns }));
    view.update({ state, receivedAt: 0 });
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
      'alice.ipynb and bob.ipynb take turns. 1 waiting; carol.ipynb is next, after an unknown wait.'
    ]);
  });
});

describe('the memory map', () => {
  it('is to scale, with unmanaged memory', () => {
    show([running, waiting]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([
      6.25, 6.25
    ]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-laneMap')).toEqual([12.5]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-unmanaged')).toEqual([6.25]);
  });

  it('shows how much of a lane each member needs', () => {
    const small = session({ ...waiting, ephemeral_bytes: 2 ** 28 });
    show([running, small]);
    expect(widths('.jp-GpuShare-stripe')).toEqual([25, 12.5]);
  });

  it('puts what is paged out beside it, at the same scale', () => {
    const out = session({
      state: 'paged_out',
      lane: null,
      paged_out_bytes: 2 ** 32
    });
    show([out]);
    expect(widths('.jp-GpuShare-bar .jp-GpuShare-onDisk')).toEqual([25]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([]);
  });

  it('puts the memory of released notebooks there too', () => {
    const state = snapshotOf(device([running], { resting: [resting()] }));
    view.update({ state, receivedAt: 0 });
    expect(widths('.jp-GpuShare-bar .jp-GpuShare-onDisk')).toEqual([18.75]);
    expect(texts('.jp-GpuShare-legend li')).toContain('3.0 GiB on disk');
  });

  it('shows only its beginning where little is used, and says so', () => {
    const little = device([running], {
      persistent_bytes: 2 ** 30,
      unmanaged_bytes: 0,
      free_bytes: 15 * 2 ** 30 - 2 ** 20,
      lanes: [
        {
          id: 1,
          bytes: 2 ** 20,
          holder: 'a',
          members: ['a'],
          beside: null,
          width_bytes: 0
        }
      ]
    });
    view.update({ state: snapshotOf(little), receivedAt: 0 });
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([50]);
    expect(node.textContent).toContain('The bar shows the first 2.0 GiB');
  });

  it('is described in words for people who do not see it', () => {
    show([running]);
    const label =
      node.querySelector('.jp-GpuShare-bar')!.ariaLabel ??
      node.querySelector('.jp-GpuShare-bar')!.getAttribute('aria-label');
    expect(label).toBe(
      '16.0 GiB in all: 4.0 GiB model and data, 2.0 GiB in 1 lane, 1.0 GiB unmanaged memory, 9.0 GiB free'
    );
  });
});

describe('the last minute', () => {
  const path = (id: string) =>
    all('.jp-GpuShare-member').map(row =>
      row.querySelector(`.jp-GpuShare-${id}`)!.getAttribute('d')
    );

  it('has a row for each running and each waiting notebook, with bars for turns', () => {
    const turns = [
      turn({ session: 'b', began: 40, ended: 20, held: 20 }),
      turn({ began: 20, ended: null, held: 20 })
    ];
    view.update({
      state: snapshotOf(device([running, waiting], { turns })),
      receivedAt: 0
    });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-name')).toEqual([
      'alice',
      'bob'
    ]);
    expect(path('turns')).toEqual([
      'M40.00 1v-1.00h20.00v1.00z',
      'M20.00 1v-1.00h20.00v1.00z'
    ]);
    expect(path('waited')).toEqual(['', 'M2.00 .5H60']);
  });

  it('shows of many the running and the next ones, though they have had turns', () => {
    const all = many(20);
    const turns = all.map(({ id }) => turn({ session: id }));
    const state = snapshotOf(device(all, { turns }));
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-sign')).toEqual([
      ...['▶', '1', '2', '3', '4', '5']
    ]);
  });

  it('keeps the turns of a notebook that has gone', () => {
    const turns = [
      turn({ session: 'gone', began: 40, ended: 20, held: 20 }),
      turn({ session: 'gone', lane: 7, began: 40, ended: 20, held: 20 })
    ];
    const state = snapshotOf(device([running], { turns }));
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-name')).toEqual([
      'alice',
      'closed'
    ]);
    expect(path('turns')).toEqual(['', 'M20.00 1v-1.00h20.00v1.00z']);
  });

  it('moves by itself', () => {
    view.update({ state: snapshot(running), receivedAt: 0 }, 10_000);
    expect(path('turns')).toEqual(['M38.00 1v-1.00h22.00v1.00z']);
  });

  it('shows how much of its time a row of short turns really had', () => {
    const turns = [turn({ began: 12, ended: 10, held: 1 })];
    view.update({
      state: snapshotOf(device([running], { turns })),
      receivedAt: 0
    });
    expect(path('turns')).toEqual(['M48.00 1v-0.50h2.00v0.50z']);
  });

  it('counts seconds by the clock, so that a bar moves and does not flicker', () => {
    const turns = [turn({ began: 10.3, ended: 9.8, held: 0.5 })];
    const state = snapshotOf(device([running], { turns }));
    view.update({ state, receivedAt: 100_000 });
    expect(path('turns')).toEqual([
      'M49.00 1v-0.30h1.00v0.30zM50.00 1v-0.20h1.00v0.20z'
    ]);
    view.tick(100_500);
    expect(path('turns')).toEqual([
      'M48.50 1v-0.30h1.00v0.30zM49.50 1v-0.20h1.00v0.20z'
    ]);
  });

  it('has few rows however many there are', () => {
    show(many(100));
    expect(all('.jp-GpuShare-member')).toHaveLength(6);
    expect(texts('.jp-GpuShare-more')[0]).toContain('94 more');
  });
});

describe('the queue', () => {
  it('has place, notebook, owner, wait, expected wait and reason', () => {
    show([waiting, running]);
    const row = all('.jp-GpuShare-notebook.jp-mod-waiting td').map(
      cell => cell.textContent
    );
    expect(row).toEqual([
      '1',
      'bob.ipynb',
      'bob',
      '0:58',
      '≈ 0:10',
      '✕',
      'bob · waits for alice.ipynb'
    ]);
  });

  it('has clocks that run here', () => {
    show([running, waiting], admin, 4500);
    expect(texts('.jp-GpuShare-since')).toEqual(['0:16', '1:02']);
    view.tick(60_000);
    expect(texts('.jp-GpuShare-since')).toEqual(['1:12', '1:58']);
    expect(texts('.jp-GpuShare-expected')).toEqual(['', 'unknown']);
  });

  it('shows the first and, when asked, all', () => {
    show(many(100));
    expect(all('.jp-mod-waiting.jp-GpuShare-notebook')).toHaveLength(8);
    press('Show all 99');
    expect(all('.jp-mod-waiting.jp-GpuShare-notebook')).toHaveLength(99);
    press('Show fewer');
    expect(all('.jp-mod-waiting.jp-GpuShare-notebook')).toHaveLength(8);
  });

  it('says that a session is overdue, in words and with a sign', () => {
    const late = session({ state: 'overdue', reason: 'overdue: was asked' });
    show([late, waiting]);
    expect(texts('.jp-GpuShare-notebook .jp-GpuShare-sign')).toEqual([
      '!',
      '1'
    ]);
    expect(node.textContent).toContain('overdue: was asked');
  });

  it('shows sessions that wait for memory to come back among those that wait', () => {
    const back = session({
      state: 'paged_out',
      position: 1,
      waiting_seconds: 2,
      lane: null
    });
    show([back]);
    expect(texts('.jp-GpuShare-group')).toEqual(['Queue (1)']);
  });

  it('takes names as text, never as markup, and of any length', () => {
    const name = '<img src=x onerror=alert(1)>' + 'x'.repeat(200);
    show([session({ name, reason: name, user: name })]);
    press(name);
    expect(node.querySelector('img')).toBeNull();
    expect(node.textContent).toContain(name);
  });

  it('has what its notebook has declared to do, and when that will be done', () => {
    const remaining_iterations = 300;
    const declares = { ...running, busy: true, remaining_iterations };
    const reasons = [370, null, 9].map(remaining_seconds => {
      show([session({ ...declares, remaining_seconds })]);
      return texts('.jp-GpuShare-reason')[0];
    });
    expect(reasons).toEqual([
      expect.stringContaining('300 iterations left, about 6 min 10 s'),
      expect.stringMatching(/300 iterations left$/),
      expect.not.stringContaining('left')
    ]);
    show([session(declares)]);
    press('alice.ipynb');
    expect(texts('dd')).toContain('1200 of 1500');
    expect(texts('dd')).toContain('unknown');
    show([session({ ...declares, remaining_seconds: 60 })]);
    expect(texts('dd')).toContain('in about 60 s at its present share');
    show([session({ ...declares, busy: false })]);
    expect(texts('.jp-GpuShare-reason')[0]).not.toContain('left');
  });

  it('opens all details of a notebook, and keeps them open', () => {
    show([running]);
    press('alice.ipynb');
    expect(node.textContent).toContain('lab/alice.ipynb');
    show([running, waiting]);
    expect(texts('dd')).toContain('1200');
    press('alice.ipynb');
    expect(texts('dd')).toEqual([]);
  });
});

describe('the order', () => {
  const third = session({ ...waiting, id: 'c', name: 'a.ipynb', position: 3 });
  const second = session({ ...waiting, id: 'd', name: 'z.ipynb', position: 2 });
  const signs = (where: string) => texts(`${where} .jp-GpuShare-sign`);

  it('is that of the queue positions, in the table as in the lanes', () => {
    const turns = ['c', 'b'].map(id => turn({ session: id }));
    const all = [third, running, waiting, second];
    view.update({
      state: snapshotOf(device(all, { turns })),
      receivedAt: 0
    });
    const order = ['▶', '1', '2', '3'];
    expect(signs('table')).toEqual(order);
    expect(signs('.jp-GpuShare-member')).toEqual(order);
  });

  it('is so under the pointer too, where a press in the very moment is not taken', () => {
    show([running, waiting, second]);
    const [first] = all('.jp-GpuShare-act button');
    show([
      running,
      session({ ...waiting, position: 2 }),
      session({ ...second, position: 1 })
    ]);
    expect(signs('table')).toEqual(['▶', '1', '2']);
    const pressed = () =>
      first.dispatchEvent(new MouseEvent('click', { detail: 1 }));
    pressed();
    expect(actions.ask).not.toHaveBeenCalled();
    expect(texts('[role=alert]')[0]).toContain('press again');
    vi.spyOn(performance, 'now').mockReturnValue(performance.now() + 600);
    pressed();
    expect(actions.ask).toHaveBeenCalledWith('b', 'cancel');
    vi.restoreAllMocks();
  });

  it('is no order of turns where none has been', () => {
    const none = device([session()], { turns: [] });
    view.update({ state: snapshotOf(none), receivedAt: 0 });
    expect(texts('.jp-GpuShare-laneTitle')[0]).toBe(
      'Lane 12.0 GiB, 1 notebook'
    );
    expect(texts('.jp-GpuShare-more')).toEqual([
      'No turns in the last minute.'
    ]);
    // those of one that has gone since are turns all the same
    const gone = device([session()], { turns: [turn({ session: 'gone' })] });
    view.update({ state: snapshotOf(gone), receivedAt: 0 });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-name')).toEqual(['closed']);
    expect(texts('.jp-GpuShare-more')).toEqual([]);
  });
});

describe('names', () => {
  const named = (...all: ISessionView[]) => {
    show(all);
    return texts('table .jp-GpuShare-name');
  };

  it('that are equal get their folder, then their owner and process', () => {
    const one = session({ id: '1', name: 'alice/hw1.ipynb' });
    const other = session({ id: '2', name: 'bob/hw1.ipynb' });
    expect(named(one, other, waiting)).toEqual([
      'bob.ipynb',
      'alice/hw1.ipynb',
      'bob/hw1.ipynb'
    ]);
    const same = { ...one, id: '3', user: 'carol' };
    expect(named(one, same)).toEqual([
      'alice/hw1.ipynb (alice)',
      'alice/hw1.ipynb (carol)'
    ]);
    const again = { ...one, id: '3', pid: 77 };
    expect(named(one, again)).toEqual([
      'alice/hw1.ipynb (alice, 1)',
      'alice/hw1.ipynb (alice, 77)'
    ]);
  });

  it('are those that this page knows, also after a notebook was renamed', () => {
    const all = [
      session({ id: '1', name: 'hw1.ipynb', pid: 11 }),
      session({ id: '2', name: 'hw1.ipynb', pid: 12 }),
      session({ id: '3', name: 'old.ipynb', pid: 13 })
    ];
    const paths = new Map([
      [11, 'alice/hw1.ipynb'],
      [12, 'bob/hw1.ipynb'],
      [13, 'new.ipynb']
    ]);
    view.update({ state: snapshot(...all), receivedAt: 0, paths });
    expect(texts('table .jp-GpuShare-name')).toEqual([
      'alice/hw1.ipynb',
      'bob/hw1.ipynb',
      'new.ipynb'
    ]);
  });
});

describe('idle notebooks', () => {
  const idle = session({
    reason: 'nothing to run',
    idle_seconds: 720,
    idle_step: 'caches'
  });
  const out = session({
    id: 'o',
    name: 'oscar.ipynb',
    state: 'paged_out',
    lane: null,
    paged_out_bytes: 2 ** 30
  });
  const reasons = () =>
    all('.jp-GpuShare-reason').map(cell => cell.lastChild!.textContent);
  const rest = (...notebooks: ReturnType<typeof resting>[]) =>
    snapshotOf(device([out], { resting: notebooks }));
  const cull = {
    session: 'r',
    action: 'cull',
    sentence: 'No cell has run for 3 h. Its kernel is to be shut down.'
  };

  it('say for how long, and what was done about it', () => {
    show([idle]);
    expect(reasons()).toEqual([
      'nothing to run · idle for 12 min; gave back its caches'
    ]);
    view.tick(60_000);
    expect(reasons()[0]).toContain('idle for 13 min');
  });

  it('say nothing of it before the first step', () => {
    show([session({ ...idle, idle_step: '' })]);
    expect(reasons()).toEqual(['nothing to run']);
  });

  it('say how long they are idle at a step that is not known here', () => {
    show([session({ ...idle, idle_step: 'hibernate' })]);
    expect(reasons()).toEqual(['nothing to run · idle for 12 min']);
  });

  it('that are released are the last rows, by a sign and words of their own', () => {
    view.update({ state: rest(resting()), receivedAt: 0 });
    expect(texts('.jp-GpuShare-group')).toEqual([
      'Idle or paused (1)',
      'Resting until their next cell (1)'
    ]);
    expect(texts('.jp-GpuShare-notebooks .jp-GpuShare-sign')).toEqual([
      '↓',
      '☾'
    ]);
    expect(reasons()[1]).toBe(
      'idle for 2 h 5 min; released the device to others · 3.0 GiB on disk'
    );
  });

  it('that are released have no buttons, for any viewer', () => {
    view.update({ state: rest(resting()), receivedAt: 0, viewer: admin });
    press('rose.ipynb');
    expect(texts('dd')).toEqual(['lab/rose.ipynb', 'rose, process 3']);
    expect(buttons()).toEqual(['oscar.ipynb', 'rose.ipynb']);
    expect(all('.jp-GpuShare-notebook input')).toEqual([]);
  });

  it('that are released are shown though there is no other notebook', () => {
    const state = snapshotOf(device([], { lanes: [], resting: [resting()] }));
    view.update({ state, receivedAt: 0 });
    expect(buttons()).toEqual(['rose.ipynb']);
    expect(node.textContent).not.toContain('%gpushare on');
  });

  it('that are released are as many as are asked for', () => {
    const dozen = Array.from({ length: 12 }, (_, index) =>
      resting({ id: `r${index}`, name: `${index}.ipynb` })
    );
    view.update({ state: rest(...dozen), receivedAt: 0 });
    expect(all('.jp-mod-resting')).toHaveLength(8);
    press('Show all 12');
    expect(all('.jp-mod-resting')).toHaveLength(12);
  });

  it('say that their kernel is to be shut down', () => {
    const state = { ...rest(resting()), interventions: [cull] };
    view.update({ state, receivedAt: 0 });
    expect(reasons()[1]).toBe(`${cull.sentence} · 3.0 GiB on disk`);
  });
});

describe('a holder that hangs', () => {
  it('says that its cell is to be interrupted', () => {
    const sentence = 'So its cell is interrupted.';
    const late = session({ state: 'overdue', reason: 'overdue' });
    const interventions = [{ session: 'a', action: 'interrupt', sentence }];
    const state = { ...snapshot(late, waiting), interventions };
    view.update({ state, receivedAt: 0 });
    expect(texts('.jp-mod-overdue .jp-GpuShare-reason')).toEqual([
      `alice · overdue · ${sentence}`
    ]);
  });
});

describe('what a viewer may do', () => {
  const open = (sessions: ISessionView[], who: IViewer | null) => {
    show(sessions, who);
    press('alice.ipynb');
    return buttons();
  };
  const labels = ['Give way after this iteration', 'Pause'];

  it('is nothing for a user that may only look', () => {
    for (const who of [null, viewer({ may_change: false })]) {
      beforeEachView();
      expect(open([running, waiting], who)).toEqual([
        'alice.ipynb',
        'bob.ipynb'
      ]);
      expect(node.querySelector('select, input')).toBeNull();
    }
  });

  it('is to change one’s own', () => {
    expect(open([running, waiting], viewer())).toEqual(
      expect.arrayContaining(labels)
    );
    expect(buttons()).not.toContain('✕'); // bob's
    expect(node.querySelector('select')).toBeNull();
  });

  it('is nothing of other users', () => {
    expect(open([running, waiting], viewer({ user: 'bob' }))).toEqual([
      'alice.ipynb',
      'bob.ipynb',
      '✕'
    ]);
  });

  it('is everything for an administrator', () => {
    expect(open([running, waiting], admin)).toEqual(
      expect.arrayContaining([...labels, '✕'])
    );
    expect(node.querySelector('select')).not.toBeNull();
  });

  function beforeEachView() {
    node.replaceChildren();
    view = new GpuShareView(node, undefined, actions);
  }

  it('is carried out and said', async () => {
    show([running, waiting], admin);
    press('Cancel the wait of bob.ipynb');
    expect(actions.ask).toHaveBeenCalledWith('b', 'cancel');
    await vi.waitFor(() =>
      expect(texts('[role=status]')).toEqual([
        'The wait of bob.ipynb is cancelled.'
      ])
    );
  });

  it('is to page out an idle notebook', () => {
    expect(open([session()], admin)).toContain('Move to disk');
    press('Move to disk');
    expect(actions.ask).toHaveBeenCalledWith('a', 'page_out');
    show([running], admin);
    expect(buttons()).not.toContain('Move to disk');
  });

  it('is to pause, to resume and to change the weight', () => {
    open([session()], admin);
    press('Pause');
    expect(actions.change).toHaveBeenCalledWith('a', { paused: true });
    show([session({ state: 'paused' })]);
    press('Resume');
    expect(actions.change).toHaveBeenCalledWith('a', { paused: false });
    const input = node.querySelector('input')!;
    input.value = '2.5';
    input.dispatchEvent(new Event('change'));
    expect(actions.change).toHaveBeenCalledWith('a', { weight: 2.5 });
  });

  it('says why it was refused', async () => {
    actions.choosePolicy = () => Promise.reject(new Error('only root may'));
    show([running]);
    choose('fifo');
    press('Apply to all notebooks');
    await vi.waitFor(() =>
      expect(texts('[role=alert]')).toEqual(['only root may'])
    );
  });

  it('is shown as it is, not as it was wished, where it was refused', async () => {
    const no = () => Promise.reject(new Error('no'));
    Object.assign(actions, { choosePolicy: no, change: no });
    open([session()], admin);
    const fields = all<HTMLInputElement>('select, input');
    fields[0].value = '7';
    fields[0].dispatchEvent(new Event('change'));
    choose('fifo');
    press('Apply to all notebooks');
    await vi.waitFor(() => expect(texts('[role=alert]')).toEqual(['no']));
    expect(fields.map(({ value }) => value)).toEqual(['1', 'fair']);
  });
});

describe('a choice of the policy', () => {
  const policyButtons = () => texts('.jp-GpuShare-policy button');

  it('changes nothing until it is applied', async () => {
    show([running]);
    choose('fifo');
    show([running]); // what comes meanwhile leaves the choice alone
    expect(node.querySelector('select')!.value).toBe('fifo');
    expect(texts('.jp-GpuShare-policy')[0]).toContain('first come');
    expect(actions.choosePolicy).not.toHaveBeenCalled();
    vi.mocked(actions.choosePolicy).mockResolvedValue();
    press('Apply to all notebooks');
    expect(actions.choosePolicy).toHaveBeenCalledWith('fifo');
    await vi.waitFor(() => expect(policyButtons()).toEqual([]));
  });

  it('stays where another one is still being applied', async () => {
    let applied = () => {};
    vi.mocked(actions.choosePolicy).mockReturnValue(
      new Promise<void>(done => (applied = done))
    );
    show([running]);
    choose('fifo');
    press('Apply to all notebooks');
    choose('las');
    applied();
    await vi.waitFor(() =>
      expect(node.textContent).toContain('The policy is fifo now.')
    );
    expect(node.querySelector('select')!.value).toBe('las');
    expect(policyButtons()).toContain('Apply to all notebooks');
  });

  it('can be taken back', () => {
    show([running]);
    choose('fifo');
    press('Keep fair');
    expect(node.querySelector('select')!.value).toBe('fair');
    expect(policyButtons()).toEqual([]);
    expect(actions.choosePolicy).not.toHaveBeenCalled();
  });
});

describe('a lane that two notebooks use at once', () => {
  const both = [
    running,
    session({ id: 'b', name: 'bob.ipynb', user: 'bob', state: 'running' })
  ];
  const inOneLane = (sessions: ISessionView[]) => {
    const there = device(sessions);
    const lane = { ...there.lanes[0], beside: 'b', width_bytes: 2 ** 29 * 1.2 };
    view.update(
      {
        state: snapshotOf({ ...there, lanes: [lane] }),
        receivedAt: 0,
        viewer: admin
      },
      0
    );
  };
  const curve = { seconds: 0.1, peak_bytes: 2 ** 29, percent: [20, 100, 20] };
  const path = (name: string) =>
    node.querySelector(`.jp-GpuShare-${name}`)?.getAttribute('d');

  it('tells what each would take in a lane of its own', () => {
    inOneLane(both);
    expect(texts('.jp-GpuShare-coLane')).toEqual([
      'alice (from below) and bob (from above) compute at once in 614 MiB, and one waits where both need more. In lanes of their own they would take 1.0 GiB.'
    ]);
    expect(path('below')).toBeUndefined(); // no curve is known
  });

  it('draws what an iteration of each has of it, from both ends', () => {
    inOneLane(both.map(one => ({ ...one, curve })));
    expect(path('below')).toBe(
      'M0 100V83.3h33.333V16.7h33.333V83.3h33.333V100z'
    );
    expect(path('above')).toBe('M0 0V16.7h33.333V83.3h33.333V16.7h33.333V0z');
    const [label] = all('.jp-GpuShare-curves').map(each =>
      each.getAttribute('aria-label')
    );
    expect(label).toContain('bob.ipynb from above');
  });

  it('draws one of them while the curve of the other one is unknown', () => {
    inOneLane([both[0], { ...both[1], curve }]);
    expect(path('below')).toBe('');
    expect(path('above')).toContain('M0 0V16.7');
  });

  it('is no picture while one notebook has it', () => {
    show([{ ...running, curve }]);
    expect(all('.jp-GpuShare-coLane')).toEqual([]);
  });
});

describe('a weight that is none', () => {
  it.each(['0', '-3', '', '1001'])('is refused: %j', text => {
    show([session({ weight: 4 })]);
    press('alice.ipynb');
    const field = node.querySelector('input')!;
    field.value = text;
    field.dispatchEvent(new Event('change'));
    expect(actions.change).not.toHaveBeenCalled();
    expect(texts('[role=alert]')).toEqual([
      'A weight is a number above 0, and at most 1000, such as 0.5 or 2. It stays 4.'
    ]);
    expect(field.value).toBe('4');
  });
});

describe('a wait that was cancelled', () => {
  const again = vi.fn();
  const data = (there: boolean) => ({
    state: snapshot(
      running,
      session({ ...waiting, position: null, state: 'idle' })
    ),
    receivedAt: 0,
    viewer: admin,
    again: ({ id }: { id: string }) => (there && id === 'b' ? again : null)
  });

  it('can be queued again for as long as its cell is there', () => {
    again.mockReset().mockResolvedValue(undefined);
    view.update(data(true));
    expect(buttons()).toContain('Queue again');
    press('Queue the cancelled cell of bob.ipynb again');
    expect(again).toHaveBeenCalledTimes(1);
    view.update(data(false));
    expect(buttons()).not.toContain('Queue again');
  });

  it('can be undone where it is shown', async () => {
    again.mockReset().mockResolvedValue(undefined);
    vi.mocked(actions.ask).mockResolvedValue();
    show([running, waiting]);
    press('Cancel the wait of bob.ipynb');
    await vi.waitFor(() => expect(texts('[role=status]')).toHaveLength(1));
    expect(buttons()).not.toContain('Undo: queue again'); // until it has ended
    view.update(data(true));
    press('Undo: queue again');
    expect(again).toHaveBeenCalledTimes(1);
  });
});

describe('use', () => {
  it('shows each user’s part beside a fair one', () => {
    show([running, waiting]);
    expect(texts('.jp-GpuShare-user .jp-GpuShare-figure')).toEqual([
      '1:30 · 75 %',
      '0:30 · 25 %'
    ]);
    expect(widths('.jp-GpuShare-share i')).toEqual([75, 25]);
    expect(node.textContent).toContain('50 % for each');
  });

  it('is of the last hour, or of the shorter time that the broker knows', () => {
    const title = (count: number) => {
      const users = [{ name: 'alice', used_seconds: Array(count).fill(1) }];
      view.update({
        state: snapshotOf(device([running], { users })),
        receivedAt: 0
      });
      return texts('.jp-GpuShare-use h3')[0];
    };
    expect(title(12)).toBe('Use in the last hour');
    expect(title(2)).toBe('Use since the broker started');
    const newest = node.querySelector('.jp-GpuShare-spark path')!;
    expect(newest.getAttribute('d')).toMatch(/^M10 .*M11 /);
  });
});

describe('when things are odd', () => {
  const gone = { type: 'Error', code: 'unavailable' } as const;

  it('says how to join where no notebook shares', () => {
    show([]);
    expect(node.textContent).toContain('%gpushare on');
    expect(node.querySelector('table')).toBeNull();
  });

  it('says that the broker is away, what that means, and the last state', () => {
    show([running]);
    const message = 'no broker answers on /run/b.sock';
    const state = { ...gone, message };
    view.update({ state, receivedAt: 400 }, 400);
    expect(node.textContent).not.toContain('0:00 ago');
    view.update({ state, receivedAt: 9000 }, 9000);
    expect(node.textContent).toContain(message);
    expect(node.textContent).toContain('A notebook that has a turn goes on');
    expect(node.textContent).toContain('what was 0:09 ago');
    expect(node.querySelector('.jp-mod-stale')?.hasAttribute('inert')).toBe(
      true
    );
    show([running]);
    expect(node.textContent).not.toContain(message);
    expect(node.querySelector('.jp-mod-stale')).toBeNull();
  });

  it('says that the server does not answer, and what has ended with it', () => {
    const lost = { type: 'Error', code: DISCONNECTED, message: '' } as const;
    view.update({ state: lost, receivedAt: 0 });
    expect(texts('strong')).toEqual([
      'The server of this page does not answer. Reconnecting…'
    ]);
    expect(node.textContent).toContain(
      'If that server has ended, the kernels that it started have ended with it'
    );
    expect(node.textContent).not.toContain('Nothing is lost');
  });

  describe('after a broker’s death', () => {
    const both = () => snapshot(running, waiting);
    const anew = (...sessions: ISessionView[]) => {
      const state = snapshot(...sessions);
      return {
        ...state,
        broker: { ...state.broker, pid: 2, recovering: true }
      };
    };
    const tell = (state: State, second: number) =>
      view.update({ state, receivedAt: 1000 * second }, 1000 * second);
    const rows = () => texts('table .jp-GpuShare-name');

    it('keeps the last view, greyed, until the notebooks are back', () => {
      tell(both(), 0);
      tell({ ...gone, message: 'gone' }, 1);
      const seen = [rows()];
      tell(anew(), 2);
      seen.push(rows());
      expect(node.textContent).toContain('The broker was restarted.');
      expect(node.textContent).not.toContain('No notebook');
      expect(node.querySelector('.jp-mod-stale')).not.toBeNull();
      tell(anew(waiting), 2.1);
      seen.push(rows());
      expect(node.querySelector('.jp-mod-stale')).not.toBeNull();
      tell(anew(running, waiting), 2.2);
      seen.push(rows());
      expect(node.querySelector('.jp-mod-stale')).toBeNull();
      expect(node.textContent).toContain('It grants no turn until');
      tell(both(), 2.5);
      seen.push(rows());
      expect(node.textContent).not.toContain('anew');
      expect(new Set(seen.map(names => names.join()))).toEqual(
        new Set(['alice.ipynb,bob.ipynb'])
      );
    });

    it('does not stay for ever for one that has ended meanwhile', () => {
      tell(both(), 0);
      tell(anew(running), 2);
      view.tick(11_000);
      expect(rows()).toEqual(['alice.ipynb', 'bob.ipynb']);
      view.tick(12_500);
      expect(rows()).toEqual(['alice.ipynb']);
      expect(node.querySelector('.jp-mod-stale')).toBeNull();
    });

    it('says so on a page that was opened then', () => {
      tell(anew(), 0);
      expect(node.textContent).toContain('No notebook has come back yet.');
      expect(node.textContent).not.toContain('%gpushare on');
    });
  });

  it('says that there is no device', () => {
    view.update({ state: snapshotOf(), receivedAt: 0 });
    expect(node.textContent).toContain('no device');
  });

  it('says that versions differ', () => {
    const state = { ...snapshot(running), version: '9.9.9' };
    view.update({ state, receivedAt: 0 });
    expect(node.textContent).toContain('the broker of 9.9.9');
  });

  it('shows what it can of a broker that knows less, or other states', () => {
    const older = JSON.parse(JSON.stringify(snapshot(running)));
    delete older.devices[0].turns;
    delete older.devices[0].users;
    delete older.devices[0].unmanaged_bytes;
    delete older.devices[0].resting;
    delete older.interventions;
    delete older.devices[0].sessions[0].idle_step;
    older.devices[0].sessions[0].state = 'dancing';
    view.update({ state: older, receivedAt: 0 });
    expect(node.textContent).toContain('alice.ipynb');
    expect(node.textContent).not.toContain('NaN');
  });

  it('gives no figure for memory that is not measured yet', () => {
    show([session({ measured: false })]);
    press('alice.ipynb');
    expect(texts('dd')).toContain('not measured yet');
  });
});

describe('a notebook that has several devices at once', () => {
  const gang = session({
    state: 'running',
    gang: ['cuda:0', 'cuda:1'],
    reason: 'runs, and has 2 whole devices: cuda:0, cuda:1'
  });

  it('says so in its reason, its tooltip and its details', () => {
    show([gang]);
    expect(texts('.jp-GpuShare-reason')[0]).toContain(gang.reason);
    expect(
      all<HTMLElement>('.jp-GpuShare-member').map(row => row.title)
    ).toEqual(['lab/alice.ipynb (alice): cuda:0, cuda:1 at once']);
    all<HTMLElement>('.jp-GpuShare-notebook button')[0].click();
    expect(texts('dd')).toContain('cuda:0, cuda:1 at once');
  });
});
