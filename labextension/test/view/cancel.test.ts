import { beforeEach, describe, expect, it, vi } from 'vitest';
import {
  actions,
  admin,
  buttons,
  newPage,
  press,
  show,
  texts,
  view
} from './looks';
import { running, session, snapshot, waiting } from '../states';

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
