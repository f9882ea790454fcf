/** The users of a device in the last hour, beside their fair shares. */

import { button, div, h, INode, note, svg } from './dom';
import { clock } from '../state/format';
import { IViewModel } from './view_model';
import { IDeviceView, IUserView } from '../state/snapshot';

const SHOWN = 5;
const TWELFTHS = 12; // of an hour, each a column

/** A user's seconds, and their part of all seconds. */
interface IUse {
  user: IUserView;
  seconds: number;
  share: number;
}

/**
 * Users with a session here or with turns in the last hour, most seconds first.
 */
export function shares(device: IDeviceView): IUse[] {
  const known = new Map<string, IUserView>();
  for (const { user } of device.sessions) {
    known.set(user, { name: user, used_seconds: [] });
  }
  for (const user of device.users ?? []) {
    known.set(user.name, user);
  }
  const users = [...known.values()];
  const sums = users.map(user => user.used_seconds.reduce((a, b) => a + b, 0));
  const total = sums.reduce((a, b) => a + b, 0);
  return users
    .map((user, index) => ({
      user,
      seconds: sums[index],
      share: total > 0 ? sums[index] / total : 0
    }))
    .sort(
      (a, b) => b.seconds - a.seconds || a.user.name.localeCompare(b.user.name)
    );
}

export function use(device: IDeviceView, viewModel: IViewModel): INode | null {
  const { trans } = viewModel;
  const all = shares(device);
  const name = `all users ${device.name}`;
  const shown = viewModel.isOpen(name) ? all : all.slice(0, SHOWN);
  const fair = 1 / Math.max(1, all.length);
  const when = since(device, viewModel);
  return all.length === 0
    ? null
    : div(
        'section',
        'use',
        { 'aria-label': `${device.name}: ${when}` },
        h('h3', {}, when),
        all.length > 1
          ? note(
              trans.__('The mark is a fair share: %1 for each.', percent(fair))
            )
          : null,
        h(
          'ul',
          {},
          ...shown.map(one => row(one, fair, all.length > 1, viewModel))
        ),
        all.length > SHOWN
          ? button(
              viewModel.isOpen(name)
                ? trans.__('Show fewer')
                : trans.__('Show all %1 users', all.length),
              () => viewModel.toggle(name),
              { 'aria-expanded': `${viewModel.isOpen(name)}` }
            )
          : null
      );
}

/** A young broker knows of no more than its own time. */
function since(device: IDeviceView, { trans }: IViewModel): string {
  const known = (device.users ?? []).map(user => user.used_seconds.length);
  return known.some(count => count < TWELFTHS)
    ? trans.__('Use since the broker started')
    : trans.__('Use in the last hour');
}

function percent(share: number): string {
  return `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
}

function row(
  { user, seconds, share }: IUse,
  fair: number,
  marked: boolean,
  { trans }: IViewModel
): INode {
  return div(
    'li',
    'user',
    { key: user.name, title: user.name },
    div('span', 'userName', {}, user.name),
    div(
      'span',
      'share',
      { 'aria-hidden': 'true' },
      h('i', { style: `width: ${(100 * share).toFixed(1)}%` }),
      marked ? h('b', { style: `left: ${(100 * fair).toFixed(1)}%` }) : null
    ),
    div('span', 'figure', {}, `${clock(seconds)} · ${percent(share)}`),
    spark(user, trans.__('in steps of five minutes'))
  );
}

/** Columns, one for each five minutes, the newest at the right. */
function spark(user: IUserView, label: string): INode {
  const most = Math.max(1, ...user.used_seconds);
  const first = TWELFTHS - user.used_seconds.length;
  const columns = user.used_seconds.map((seconds, index) => {
    const high = (seconds / most).toFixed(2);
    return seconds > 0 ? `M${first + index} 1v-${high}h.8v${high}z` : '';
  });
  return svg(
    'spark',
    label,
    `0 0 ${TWELFTHS} 1`,
    h('path', { d: columns.join('') })
  );
}
