/**
 * Ends a wait: at once if nothing is lost, else after a question. Runs the cell
 * again.
 */

import { button, Child, div, h, IProps } from './dom';
import { ITranslate, lasting } from '../state/format';
import { isOwn, Notebook } from '../state/notebook';
import { hadTurns } from '../state/queue';
import { ISessionView } from '../state/snapshot';
import { IViewModel } from './view_model';

/** The buttons of the question, here and in the dialog of the command. */
export function answers(
  trans: ITranslate
): Record<'pause' | 'stop' | 'keep', string> {
  return {
    pause: trans.__('Pause instead'),
    stop: trans.__('Stop this cell'),
    keep: trans.__('Keep waiting')
  };
}

export function question(
  { device_seconds }: ISessionView,
  name: string,
  trans: ITranslate
): string {
  return trans.__(
    '%1 has had the device for %2. If its cell is stopped, it ends where it is now.',
    name,
    lasting(device_seconds, trans)
  );
}

/** The button's effect, if the viewer may cancel. */
export function cancelButton(
  session: ISessionView,
  viewModel: IViewModel
): Child {
  if (!mayCancel(session, viewModel)) {
    return null;
  }
  const { trans, nameOf, isOpen, toggle } = viewModel;
  const asks = hadTurns(session, viewModel.snapshot);
  const label = asks
    ? trans.__('Cancel the wait of %1…', nameOf(session))
    : trans.__('Cancel the wait of %1', nameOf(session));
  const act = asks
    ? () => toggle(questionOf(session))
    : () => cancel(session, viewModel);
  return button('✕', unlessMoved(act, viewModel), {
    class: 'jp-GpuShare-button jp-mod-icon',
    title: label,
    'aria-label': label,
    'aria-expanded': asks ? `${isOpen(questionOf(session))}` : null
  });
}

/** The question before a cell that has had turns ends, if the viewer has pressed the button. */
export function cancelQuestion(
  session: ISessionView,
  viewModel: IViewModel
): Child {
  const name = questionOf(session);
  if (!mayCancel(session, viewModel) || !viewModel.isOpen(name)) {
    return null;
  }
  const { trans, nameOf, toggle } = viewModel;
  const text = question(session, nameOf(session), trans);
  const say = answers(trans);
  const answer = (act: () => void) =>
    unlessMoved(() => {
      toggle(name);
      act();
    }, viewModel);
  const ways: [string, () => void][] = [
    [say.pause, () => pause(session, viewModel)],
    [say.stop, () => cancel(session, viewModel)],
    [say.keep, () => undefined]
  ];
  return div(
    'div',
    'question',
    { key: 'question', role: 'group', 'aria-label': text },
    h('p', {}, text),
    div(
      'div',
      'buttons',
      {},
      ...ways.map(([label, act]) => button(label, answer(act)))
    )
  );
}

export function pause(session: ISessionView, viewModel: IViewModel): void {
  const { trans, actions, act, nameOf } = viewModel;
  act(
    actions!.change(session.id, { paused: true }),
    trans.__(
      '%1 is paused. It will not use the device until it is resumed.',
      nameOf(session)
    )
  );
}

function cancel(session: ISessionView, viewModel: IViewModel): void {
  const { trans, actions, act, nameOf } = viewModel;
  const told = trans.__('The wait of %1 is cancelled.', nameOf(session));
  act(actions!.ask(session.id, 'cancel'), told, { ended: session });
}

function mayCancel(session: ISessionView, viewModel: IViewModel): boolean {
  return (
    viewModel.actions !== null &&
    session.state === 'waiting' &&
    isOwn(viewModel.viewer, session)
  );
}

/** A question is about one wait: after a turn it would be another one. */
function questionOf({ id, device_seconds }: ISessionView): string {
  return `stop ${id} after ${device_seconds} s`;
}

/** The focus moves with its row, so a press of a key is meant for it. */
function unlessMoved(
  act: () => void,
  viewModel: IViewModel
): (event: MouseEvent) => void {
  return event =>
    event.detail > 0 && viewModel.hasJustMoved()
      ? viewModel.refuse(
          viewModel.trans.__(
            'The queue has just moved on: press again to cancel.'
          )
        )
      : act();
}

export function queueAgain(notebook: Notebook, viewModel: IViewModel): Child {
  const { trans, nameOf } = viewModel;
  return againButton(notebook, trans.__('Queue again'), viewModel, {
    key: 'again',
    'aria-label': trans.__(
      'Queue the cancelled cell of %1 again',
      nameOf(notebook)
    )
  });
}

/**
 * The button for a cell whose wait was cancelled, while the cell exists and was not run again.
 */
export function againButton(
  notebook: Notebook,
  text: string,
  viewModel: IViewModel,
  props?: IProps
): Child {
  const { trans, nameOf } = viewModel;
  const again = viewModel.again(notebook);
  const told = trans.__('The cell of %1 runs again.', nameOf(notebook));
  return again && button(text, () => viewModel.act(again(), told), props);
}
