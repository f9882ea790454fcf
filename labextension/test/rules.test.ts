import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ISnapshot, IViewer } from '../src/state/snapshot';
import { running, session, snapshot, viewer } from './states';
import { actions, all, newPage, node, press, texts, view } from './view/looks';

const groups = [
  { name: 'course', weight: 1, teachers: ['tina'] },
  { name: 'lab', weight: 1, teachers: ['tim'] }
];
const tina = viewer({ user: 'tina' });
const held = session({
  state: 'throttled',
  reason: 'throttled: a class of course has the device until it ends',
  why: [{ code: 'throttled_for_class', who: 'course' }],
  waiting_seconds: 1,
  group: 'lab'
});

beforeEach(newPage);

function show(changes: Partial<ISnapshot>, who: IViewer | null = tina) {
  const state = { ...snapshot(running), groups, ...changes };
  view.update({ state, receivedAt: 0, viewer: who });
}

const rules = () => node.querySelector('.jp-GpuShare-rulebook');

describe('rules', () => {
  it('take no room where there are none', () => {
    show({ groups: [] }, viewer({ is_administrator: true }));
    expect(rules()).toBeNull();
    show({}, viewer());
    expect(rules()).toBeNull();
  });

  it('that are wrong are reported', () => {
    show({ rulebook_error: 'the rules are wrong: ...' }, null);
    expect(rules()!.querySelector('[role=status]')!.textContent).toBe(
      'the rules are wrong: ...'
    );
  });

  it('show reservations to all users and in advance', () => {
    const one = { group: 'lab', device: 'host', begins: 0, ends: 3600 };
    show({ reservations: [{ ...one, share: 0.5, is_on: false }] }, null);
    expect(rules()!.textContent).toMatch(
      /^lab has reserved 50 % of host from .+ to .+\.$/
    );
    show(
      { reservations: [{ ...one, device: '', share: 1, is_on: true }] },
      null
    );
    expect(rules()!.textContent).toMatch(
      /^lab has reserved all devices until .+\.$/
    );
  });
});

describe('a class', () => {
  it('can be begun by the teachers of the group, with a duration', async () => {
    show({});
    const names = [...rules()!.querySelectorAll('option')].map(
      ({ value }) => value
    );
    expect(names).toEqual(['course']);
    rules()!.querySelector('input')!.value = '45';
    press('Begin the class');
    expect(actions.holdClass).toHaveBeenCalledWith({
      group: 'course',
      on: true,
      seconds: 2700
    });
    await vi.waitFor(() =>
      expect(node.textContent).toContain('The class of course begins.')
    );
  });

  it.each(['0', '-30', '1,5', ''])('does not begin for %j minutes', text => {
    show({});
    const field = rules()!.querySelector('input')!;
    field.value = text;
    press('Begin the class');
    expect(actions.holdClass).not.toHaveBeenCalled();
    expect(texts('[role=alert]')).toEqual([
      'A class lasts a number of minutes above 0.'
    ]);
    expect(field.value).toBe('90');
  });

  it('can be begun for any group by an administrator, and not by a user that may only look', () => {
    show({}, viewer({ is_administrator: true }));
    expect(rules()!.querySelectorAll('option').length).toBe(2);
    show({}, viewer({ is_administrator: true, may_change: false }));
    expect(rules()).toBeNull();
  });

  it('is seen by all, and ended by its teachers', () => {
    const classes = [{ group: 'course', device: 'host', ends: null }];
    show({ classes }, viewer());
    expect(rules()!.textContent).toBe('A class of course has host. ');
    show({ classes });
    press('End the class');
    expect(actions.holdClass).toHaveBeenCalledWith({
      group: 'course',
      on: false,
      device: 'host'
    });
  });

  it('is the reason that throttled notebooks show', () => {
    const state = { ...snapshot(held), groups };
    view.update({ state, receivedAt: 0, viewer: viewer() });
    expect(node.querySelector('.jp-GpuShare-reason')!.textContent).toContain(
      held.reason
    );
    expect(node.textContent).toContain('throttled: a class');
  });
});

describe('a teacher', () => {
  it("sets the weight of the group's notebooks, and nothing else", () => {
    const tim = viewer({ user: 'tim' });
    const state = { ...snapshot(held), groups };
    view.update({ state, receivedAt: 0, viewer: tim });
    press('alice.ipynb');
    const input = node.querySelector<HTMLInputElement>(
      '.jp-GpuShare-details input'
    )!;
    input.value = '3';
    input.dispatchEvent(new Event('change'));
    expect(actions.change).toHaveBeenCalledWith('a', { weight: 3 });
    expect(all('.jp-GpuShare-details button')).toEqual([]);
  });
});
