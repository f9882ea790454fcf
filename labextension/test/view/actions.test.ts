import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ISessionView, IViewer } from '../../src/state/snapshot';
import {
  actions,
  admin,
  all,
  buttons,
  choose,
  newPage,
  node,
  press,
  show,
  texts
} from './looks';
import { running, session, viewer, waiting } from '../states';

beforeEach(newPage);

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
