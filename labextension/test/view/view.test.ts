import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ISessionView } from '../../src/state/snapshot';
import {
  actions,
  admin,
  all,
  buttons,
  many,
  newPage,
  node,
  press,
  show,
  showDevice,
  texts,
  view
} from './looks';
import {
  device,
  resting,
  running,
  session,
  snapshot,
  snapshotOf,
  turn,
  viewer,
  waiting
} from '../states';

beforeEach(newPage);

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

  it('says since when a long iteration lasts for whose end others wait', () => {
    const reasons = [28, 2, null].map(iteration_seconds => {
      show([session({ ...running, iteration_seconds }), waiting]);
      return texts('.jp-GpuShare-reason')[0];
    });
    expect(reasons[0]).toContain('in an iteration since 0:28 · runs');
    expect(reasons.slice(1).join()).not.toContain('in an iteration');
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

  it('names the owners in a narrow panel where not all are the same', () => {
    const owners = (...users: string[]) => {
      show(users.map((user, at) => session({ id: `${at}`, user })));
      return texts('.jp-GpuShare-ownerToo');
    };
    expect(owners('ada', 'ada')).toEqual([]);
    expect(owners('ada', 'bob')).toEqual(['ada · ', 'bob · ']);
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
    const loop_iterations = 301; // the 1199 before were of another loop
    const of = { remaining_iterations, loop_iterations };
    const declares = { ...running, busy: true, ...of };
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
    expect(texts('dd')).toContain('1 of 301');
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
    show([running, waiting], viewer({ user: 'bob' }));
    expect(texts('dt')).toContain('Weight');
    show([running, waiting]);
    press('alice.ipynb');
    expect(texts('dd')).toEqual([]);
  });
});

describe('a notebook that is squeezed', () => {
  const found = {
    asked_bytes: 10 * 2 ** 20,
    reached_bytes: 39 * 2 ** 20,
    floor_bytes: 38 * 2 ** 20,
    whole_bytes: 120 * 2 ** 20,
    slowdown: 1.304,
    written_bytes: 210 * 2 ** 20
  };
  const told = (squeezing: ISessionView['squeezing']) => {
    show([session({ squeezing })]);
    const at = texts('dt').indexOf('Squeezed');
    return at < 0 ? undefined : texts('dd')[at];
  };

  it('has the figures in its details', () => {
    show([session()]);
    press('alice.ipynb');
    expect(told(null)).toBeUndefined();
    expect(told(found)).toBe(
      'to 39.0 MiB of 120 MiB (asked 10.0 MiB, floor 38.0 MiB), about 30 % slower, 210 MiB written'
    );
    expect(told({ ...found, asked_bytes: null, slowdown: 1 })).toBe(
      'to 39.0 MiB of 120 MiB (floor 38.0 MiB), not slower, 210 MiB written'
    );
  });

  it('has unknown figures until they are known', () => {
    show([session()]);
    press('alice.ipynb');
    const none = { reached_bytes: null, floor_bytes: null, whole_bytes: null };
    expect(told({ ...found, ...none, slowdown: null, written_bytes: 0 })).toBe(
      'to unknown (asked 10.0 MiB, floor unknown), slowdown unknown, 0 B written'
    );
  });

  it('has none where the broker is older and does not say it', () => {
    const { squeezing, ...older } = session();
    expect(squeezing).toBeNull();
    show([older as ISessionView]);
    press('alice.ipynb');
    expect(texts('dt')).toContain('Name');
    expect(texts('dt')).not.toContain('Squeezed');
  });
});

describe('the order', () => {
  const third = session({ ...waiting, id: 'c', name: 'a.ipynb', position: 3 });
  const second = session({ ...waiting, id: 'd', name: 'z.ipynb', position: 2 });
  const signs = (where: string) => texts(`${where} .jp-GpuShare-sign`);

  it('is that of the queue positions, in the table as in the lanes', () => {
    const turns = ['c', 'b'].map(id => turn({ session: id }));
    const all = [third, running, waiting, second];
    showDevice(all, { turns });
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
    showDevice([session()], { turns: [] });
    expect(texts('.jp-GpuShare-laneTitle')[0]).toBe(
      'Lane 12.0 GiB, 1 notebook'
    );
    expect(texts('.jp-GpuShare-more')).toEqual([
      'No turns in the last minute.'
    ]);
    // those of one that has gone since are still turns
    showDevice([session()], { turns: [turn({ session: 'gone' })] });
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
    showDevice([out], { resting: [resting()] });
    expect(texts('.jp-GpuShare-group')).toEqual([
      'Not in the queue (1)',
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
    showDevice([out], { resting: [resting()] }, admin);
    press('rose.ipynb');
    expect(texts('dd')).toEqual(['lab/rose.ipynb', 'rose, process 3']);
    expect(buttons()).toEqual(['oscar.ipynb', 'rose.ipynb']);
    expect(all('.jp-GpuShare-notebook input')).toEqual([]);
  });

  it('that are released are shown though there is no other notebook', () => {
    showDevice([], { lanes: [], resting: [resting()] });
    expect(buttons()).toEqual(['rose.ipynb']);
    expect(node.textContent).not.toContain('%gpushare on');
  });

  it('that are released are as many as are asked for', () => {
    const dozen = Array.from({ length: 12 }, (_, index) =>
      resting({ id: `r${index}`, name: `${index}.ipynb` })
    );
    showDevice([out], { resting: dozen });
    expect(all('.jp-mod-resting')).toHaveLength(8);
    press('Show all 12');
    expect(all('.jp-mod-resting')).toHaveLength(12);
  });

  it('say that their kernel is to be shut down', () => {
    const sentence = 'No cell has run for 3 h. Its kernel is to be shut down.';
    const interventions = [{ session: 'r', action: 'cull', sentence }];
    const there = snapshotOf(device([out], { resting: [resting()] }));
    view.update({ state: { ...there, interventions }, receivedAt: 0 });
    expect(reasons()[1]).toBe(`${sentence} · 3.0 GiB on disk`);
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
