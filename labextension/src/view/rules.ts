/**
 * The present effects of an admin's rules: classes, reservations, and a file
 * that is not in force.
 */

import { button, Child, div, h, INode, labelled, trouble } from './dom';
import { moment } from '../state/format';
import { teaches } from '../state/notebook';
import { IViewModel } from './view_model';
import { IClassView, IReservationView } from '../state/snapshot';

const USUAL_MINUTES = 90; // of a class

/** Null if there is nothing to show and nothing to switch. */
export function rulebook(viewModel: IViewModel): Child {
  const { trans, snapshot } = viewModel;
  const classes = snapshot.classes ?? [];
  const parts = [
    ...(snapshot.reservations ?? []).map(one => reservation(one, viewModel)),
    ...classes.map(one => classThatIsOn(one, viewModel)),
    beginning(viewModel)
  ].filter(Boolean);
  const wrong = snapshot.rulebook_error;
  if (!wrong && parts.length === 0) {
    return null;
  }
  return div(
    'section',
    'rulebook',
    { key: 'rulebook', 'aria-label': trans.__('Rules') },
    trouble(wrong, 'wrong'),
    ...parts
  );
}

function reservation(one: IReservationView, { trans }: IViewModel): INode {
  const where = one.device || trans.__('all devices');
  const what =
    one.share < 1
      ? trans.__('%1 % of %2', Math.round(100 * one.share), where)
      : where;
  return h(
    'p',
    { key: `reserved ${one.group} ${one.device} ${one.begins}` },
    one.is_on
      ? trans.__(
          '%1 has reserved %2 until %3.',
          one.group,
          what,
          moment(one.ends)
        )
      : trans.__(
          '%1 has reserved %2 from %3 to %4.',
          one.group,
          what,
          moment(one.begins),
          moment(one.ends)
        )
  );
}

function classThatIsOn(one: IClassView, viewModel: IViewModel): INode {
  const { trans, actions, act } = viewModel;
  const told = trans.__('The class of %1 has ended.', one.group);
  const end = () =>
    act(
      actions!.holdClass({ group: one.group, on: false, device: one.device }),
      told
    );
  return h(
    'p',
    { key: `class ${one.device}` },
    one.ends === null
      ? trans.__('A class of %1 has %2.', one.group, one.device)
      : trans.__(
          'A class of %1 has %2 until %3.',
          one.group,
          one.device,
          moment(one.ends)
        ),
    ' ',
    actions && teaches(viewModel.viewer, viewModel.snapshot, one.group)
      ? button(trans.__('End the class'), end)
      : null
  );
}

/**
 * Lets teachers and administrators choose which class to begin, and for how
 * long.
 */
function beginning(viewModel: IViewModel): Child {
  const { trans, snapshot, actions, viewer, act, refuse } = viewModel;
  const groups = (snapshot.groups ?? []).filter(({ name }) =>
    teaches(viewer, snapshot, name)
  );
  const busy = new Set((snapshot.classes ?? []).map(({ device }) => device));
  if (
    !actions ||
    groups.length === 0 ||
    busy.size === snapshot.devices.length
  ) {
    return null;
  }
  const begin = (event: Event) => {
    const form = (event.target as Element).parentElement!;
    const group = form.querySelector('select')!.value;
    const field = form.querySelector('input')!;
    const seconds = 60 * Number(field.value); // 0 where the text is no number
    if (!(seconds > 0)) {
      refuse(trans.__('A class lasts a number of minutes above 0.'), field);
      return;
    }
    const told = trans.__('The class of %1 begins.', group);
    act(actions.holdClass({ group, on: true, seconds }), told);
  };
  const names = groups.map(({ name }) => h('option', { value: name }, name));
  return div(
    'div',
    'buttons',
    { key: 'begin' },
    labelled(trans.__('Class of'), 'select', {}, ...names),
    labelled(trans.__('Minutes'), 'input', {
      type: 'number',
      min: 1,
      value: String(USUAL_MINUTES)
    }),
    button(trans.__('Begin the class'), begin)
  );
}
