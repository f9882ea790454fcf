/**
 * All details of one notebook: facts, and what the viewer may do to it.
 */

import { pause } from './cancel';
import { button, Child, div, h, INode, labelled } from './dom';
import { bytes, clock, labels, title } from '../state/format';
import { gang, isOwn, Notebook, teaches } from '../state/notebook';
import { atOnce, finish } from '../state/sentences';
import { runs } from '../state/queue';
import { IRestingView, ISessionView } from '../state/snapshot';
import { squeezed } from '../state/squeezing';
import { IViewModel } from './view_model';

const GREATEST_WEIGHT = 1000;

type Fact = [name: string, value: string];

export function details(session: ISessionView, viewModel: IViewModel): INode {
  return div(
    'div',
    'details',
    {},
    list(facts(session, viewModel)),
    whatMayBeDone(session, viewModel)
  );
}

/** A notebook that is released from the device has no actions. */
export function detailsAtRest(
  notebook: IRestingView,
  viewModel: IViewModel
): INode {
  return div('div', 'details', {}, list(identity(notebook, viewModel)));
}

function list(rows: Fact[]): INode {
  const cells = rows.flatMap(([name, value]) => [
    h('dt', {}, name),
    h('dd', {}, value)
  ]);
  return h('dl', {}, ...cells);
}

function whatMayBeDone(session: ISessionView, viewModel: IViewModel): Child {
  if (!maySetWeight(session, viewModel)) {
    return null;
  }
  return isOwn(viewModel.viewer, session)
    ? buttons(session, viewModel)
    : div('div', 'buttons', {}, weight(session, viewModel));
}

/** A teacher sets the weights of the group's notebooks. */
function maySetWeight(
  session: ISessionView,
  { actions, viewer, snapshot }: IViewModel
): boolean {
  return (
    actions !== null &&
    (isOwn(viewer, session) || teaches(viewer, snapshot, session.group))
  );
}

function identity(
  { name, user, pid }: Notebook,
  { trans }: IViewModel
): Fact[] {
  return [
    [trans.__('Name'), name],
    [trans.__('Owner'), `${user}, ${trans.__('process %1', pid)}`]
  ];
}

function facts(session: ISessionView, viewModel: IViewModel): Fact[] {
  const { trans } = viewModel;
  const size = (count: number) =>
    session.measured ? bytes(count) : trans.__('not measured yet');
  const left = session.remaining_iterations;
  const loop = session.loop_iterations ?? null; // an older broker does not say it
  const all: (Fact | null)[] = [
    ...identity(session, viewModel),
    session.group ? [trans.__('Group'), session.group] : null,
    gang(session).length > 0
      ? [trans.__('Devices'), atOnce(session, trans)]
      : null,
    [title(labels(trans).persistent), size(session.persistent_bytes)],
    [title(labels(trans).ephemeral), size(session.ephemeral_bytes)],
    session.squeezing // an older broker does not say it
      ? [trans.__('Squeezed'), squeezed(session.squeezing, trans)]
      : null,
    [
      trans.__('Iterations'),
      left === null || loop === null
        ? String(session.iterations)
        : trans.__('%1 of %2', Math.max(0, loop - left), loop)
    ],
    left === null || !session.busy
      ? null
      : [trans.__('Finish'), finish(session, trans)],
    [trans.__('Device time'), clock(session.device_seconds)],
    [trans.__('Waited'), clock(session.waited_seconds)],
    // the field tells it where there is one
    maySetWeight(session, viewModel)
      ? null
      : [trans.__('Weight'), String(session.weight)],
    [trans.__('Priority'), String(session.priority)]
  ];
  return all.filter(fact => fact !== null);
}

function buttons(session: ISessionView, viewModel: IViewModel): INode {
  const { trans, act } = viewModel;
  const actions = viewModel.actions!; // the viewer may change something
  const name = viewModel.nameOf(session);
  const paused = session.state === 'paused';
  const isIdle = !session.busy && session.state === 'idle';
  return div(
    'div',
    'buttons',
    {},
    runs(session)
      ? button(trans.__('Give way after this iteration'), () =>
          act(
            actions.ask(session.id, 'yield'),
            trans.__('%1 is asked to give way after its iteration.', name)
          )
        )
      : null,
    paused
      ? button(trans.__('Resume'), () =>
          act(
            actions.change(session.id, { paused: false }),
            trans.__('%1 takes turns again.', name)
          )
        )
      : button(trans.__('Pause'), () => pause(session, viewModel)),
    isIdle && session.persistent_bytes > 0
      ? button(trans.__('Move to disk'), () =>
          act(
            actions.ask(session.id, 'page_out'),
            trans.__('%1 is asked to move its memory to disk.', name)
          )
        )
      : null,
    weight(session, viewModel)
  );
}

function weight(session: ISessionView, viewModel: IViewModel): INode {
  const { trans, actions, act, refuse } = viewModel;
  const onchange = (event: Event) => {
    const field = event.target as HTMLInputElement;
    const value = Number(field.value);
    if (!isWeight(field.value)) {
      const right = trans.__(
        'A weight is a number above 0, and at most %1, such as 0.5 or 2. It stays %2.',
        GREATEST_WEIGHT,
        session.weight
      );
      refuse(right, field);
      return;
    }
    const told = trans.__(
      '%1 has weight %2 now.',
      viewModel.nameOf(session),
      value
    );
    act(actions!.change(session.id, { weight: value }), told, { field });
  };
  return labelled(trans.__('Weight'), 'input', {
    type: 'number',
    min: 0.1,
    max: GREATEST_WEIGHT,
    step: 'any',
    value: String(session.weight),
    onchange
  });
}

/** A field of numbers is empty where the typed text is none. */
function isWeight(text: string): boolean {
  const value = Number(text);
  return text.trim() !== '' && value > 0 && value <= GREATEST_WEIGHT;
}
