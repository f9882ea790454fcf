import { beforeEach, describe, expect, it } from 'vitest';
import { ISessionView } from '../../src/state/snapshot';
import {
  all,
  many,
  newPage,
  node,
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
  waiting
} from '../states';

beforeEach(newPage);

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
    showDevice([running, waiting], { turns });
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
    showDevice(all, { turns });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-sign')).toEqual([
      ...['▶', '1', '2', '3', '4', '5']
    ]);
  });

  it('keeps the turns of a notebook that has gone', () => {
    const turns = [
      turn({ session: 'gone', began: 40, ended: 20, held: 20 }),
      turn({ session: 'gone', lane: 7, began: 40, ended: 20, held: 20 })
    ];
    showDevice([running], { turns });
    expect(texts('.jp-GpuShare-member .jp-GpuShare-name')).toEqual([
      'alice',
      'closed'
    ]);
    expect(path('turns')).toEqual(['', 'M20.00 1v-1.00h20.00v1.00z']);
  });

  it('keeps that of a notebook whose memory has left the lane', () => {
    const out = session({
      ...waiting,
      state: 'paged_out',
      position: null,
      lane: null
    });
    const turns = ['b', 'r'].map(id =>
      turn({ session: id, began: 40, ended: 20, held: 20 })
    );
    const { lanes } = device([running]); // whose member `out` is not
    showDevice([running, out], { turns, lanes, resting: [resting()] });
    expect(texts('.jp-GpuShare-member')).toEqual(['▶alice', '↓bob', '☾rose']);
    expect(path('turns').slice(1)).toEqual([
      'M20.00 1v-1.00h20.00v1.00z',
      'M20.00 1v-1.00h20.00v1.00z'
    ]);
    expect(texts('.jp-GpuShare-more')).toEqual([]);
  });

  it('moves by itself', () => {
    view.update({ state: snapshot(running), receivedAt: 0 }, 10_000);
    expect(path('turns')).toEqual(['M38.00 1v-1.00h22.00v1.00z']);
  });

  it('shows how much of its time a row of short turns really had', () => {
    const turns = [turn({ began: 12, ended: 10, held: 1 })];
    showDevice([running], { turns });
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

describe('a lane that two notebooks use at once', () => {
  const both = [
    running,
    session({ id: 'b', name: 'bob.ipynb', user: 'bob', state: 'running' })
  ];
  const inOneLane = (sessions: ISessionView[]) => {
    const [alone] = device(sessions).lanes;
    const lane = { ...alone, beside: 'b', width_bytes: 2 ** 29 * 1.2 };
    showDevice(sessions, { lanes: [lane] });
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
