import { beforeEach, describe, expect, it, vi } from 'vitest';
import { DISCONNECTED, State } from '../../src/state/format';
import { ISessionView, IViewer } from '../../src/state/snapshot';
import {
  actions,
  admin,
  all,
  buttons,
  choose,
  many,
  newPage,
  node,
  press,
  show,
  texts,
  view,
  widths
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
    // those of one that has gone since are still turns
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
      newPage();
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
    expect(texts('dt')).not.toContain('Weight'); // which the field tells
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
      expect(node.textContent).not.toContain('The broker was restarted');
      expect(new Set(seen.map(names => names.join()))).toEqual(
        new Set(['alice.ipynb,bob.ipynb'])
      );
    });

    it('does not stay forever for one that has ended meanwhile', () => {
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
