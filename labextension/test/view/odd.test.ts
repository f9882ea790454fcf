import { beforeEach, describe, expect, it } from 'vitest';
import { LastSnapshot } from '../../src/state/last_snapshot';
import { DISCONNECTED, State } from '../../src/state/notebook';
import { ISessionView } from '../../src/state/snapshot';
import {
  newPage,
  node,
  press,
  show,
  showDevice,
  texts,
  view,
  widths
} from './looks';
import { running, session, snapshot, snapshotOf, waiting } from '../states';

beforeEach(newPage);

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
      showDevice([running], { users });
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
    view.update({ state, receivedAt: 400 }, 9400);
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

  it.each(['not_permitted', 'limit', 'protocol', 'of a newer broker'])(
    'says that it is refused, and why, and not that the broker is away: %s',
    code => {
      const message = 'ask your administrator';
      view.update({
        state: { type: 'Error', code, message },
        receivedAt: 0
      });
      expect(texts('.jp-GpuShare-away strong, .jp-GpuShare-away p')).toEqual([
        'The broker refuses this page.',
        message
      ]);
    }
  );

  it('shows what was last, though it came while this was hidden', () => {
    const last = new LastSnapshot();
    last.take(snapshot(running), 0);
    view.show(last, {}, 0);
    last.take(snapshot(waiting), 60_000);
    last.take({ ...gone, message: 'gone' }, 61_000);
    view.show(last, {}, 3_600_000);
    expect(texts('table .jp-GpuShare-name')).toEqual(['bob.ipynb']);
    expect(node.textContent).toContain('what was 58:59 ago');
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

  it('takes back no time that it has shown, but for a correction', () => {
    const at = (name: string) => texts('dd')[texts('dt').indexOf(name)];
    const times = () => [at('Device time'), at('Waited')];
    const tell = (state: State, second: number) => {
      view.update({ state, receivedAt: 1000 * second }, 1000 * second);
      return times();
    };
    show([running]);
    press('alice.ipynb');
    expect(times()).toEqual(['1:01', '0:05']);
    view.tick(1900);
    expect(times()).toEqual(['1:02', '0:05']);
    // its turn ended long before the event came
    const waits = session({
      ...waiting,
      id: running.id,
      name: running.name,
      device_seconds: 61.9
    });
    expect(tell(snapshot(waits), 2)).toEqual(['1:03', '0:05']);
    view.tick(3900);
    expect(times()).toEqual(['1:03', '0:06']);
    const message = 'no broker answers';
    expect(tell({ ...gone, message }, 4)).toEqual(['1:03', '0:07']);
    view.tick(60_000);
    expect(times()).toEqual(['1:03', '0:07']);
    const late = session({ ...waits, waited_seconds: 6.5 });
    expect(tell(snapshot(late), 61)).toEqual(['1:03', '0:07']);
    const right = session({ ...waits, waited_seconds: 2 });
    expect(tell(snapshot(right), 62)).toEqual(['1:03', '0:02']);
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
      expect(node.textContent).not.toContain('was restarted');
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
