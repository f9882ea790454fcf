import { beforeEach, describe, expect, it, vi } from 'vitest';
import {
  actions,
  admin,
  buttons,
  newPage,
  press,
  show,
  showDevice,
  texts,
  view
} from './looks';
import { ISessionView } from '../../src/state/snapshot';
import { running, session, snapshot, turn, waiting } from '../states';

beforeEach(newPage);

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

  it('has its cell run again where it is told', async () => {
    again.mockReset().mockResolvedValue(undefined);
    vi.mocked(actions.ask).mockResolvedValue();
    show([running, waiting]);
    press('Cancel the wait of bob.ipynb');
    await vi.waitFor(() => expect(texts('[role=status]')).toHaveLength(1));
    expect(buttons()).not.toContain('Run the cell again'); // until it has ended
    view.update(data(true));
    press('Run the cell again');
    expect(again).toHaveBeenCalledTimes(1);
  });
});

describe('the wait of a cell that has had turns', () => {
  const half = session({ ...waiting, iterations: 12, device_seconds: 72 });
  const asked = (...others: Partial<ISessionView>[]) => {
    for (const changes of [{}, ...others]) {
      show([running, session({ ...half, ...changes })]);
    }
    return texts('.jp-GpuShare-question');
  };

  beforeEach(() => {
    show([running, half]);
    press('Cancel the wait of bob.ipynb…');
  });

  it('is not cancelled before a question, which offers a pause first', () => {
    expect(actions.ask).not.toHaveBeenCalled();
    expect(asked()[0]).toContain(
      'bob.ipynb has had the device for 72 s. If its cell is stopped, it ends where it is now.'
    );
    expect(texts('.jp-GpuShare-question button')).toEqual([
      'Pause instead',
      'Stop this cell',
      'Keep waiting'
    ]);
  });

  it.each([
    ['Pause instead', 'change', { paused: true }],
    ['Stop this cell', 'ask', 'cancel'],
    ['Keep waiting', null, null]
  ] as const)('ends or goes on by the answer: %s', (answer, act, what) => {
    press(answer);
    for (const name of ['change', 'ask'] as const) {
      expect(vi.mocked(actions[name]).mock.calls).toEqual(
        name === act ? [['b', what]] : []
      );
    }
    expect(asked()).toEqual([]);
  });

  it('is asked about until it has had another turn', () => {
    expect(asked({ waiting_seconds: 70 })).toHaveLength(1);
    expect(asked({ device_seconds: 73 })).toEqual([]);
    press('Cancel the wait of bob.ipynb…');
    expect(asked({ device_seconds: 73, state: 'running' })).toEqual([]);
  });

  it.each([
    [{ iterations: 1 }, []],
    [{ device_seconds: 1 }, []],
    [{}, [turn({ session: 'b' })]]
  ])('is known by what the snapshot has of it: %#', (changes, turns) => {
    const one = session({ ...waiting, ...changes });
    showDevice([running, one], { turns }, admin);
    press('Cancel the wait of bob.ipynb…');
    expect(texts('.jp-GpuShare-question')).toHaveLength(1);
  });
});
