/**
 * A lane that two notebooks use at once: the part that an iteration of each
 * fills from its own end.
 */

import { div, h, INode, svg } from './dom';
import { bytes, stem } from '../state/format';
import {
  ICurve,
  IDeviceView,
  ILaneView,
  ISessionView
} from '../state/snapshot';
import { IViewModel } from './view_model';

const HIGH = 100; // units of the picture, for the whole lane

export function coLane(
  lane: ILaneView,
  device: IDeviceView,
  viewModel: IViewModel
): INode | null {
  const [first, second] = [lane.holder, lane.beside].map(id =>
    device.sessions.find(session => session.id === id)
  );
  return first && second && lane.width_bytes > 0
    ? div(
        'div',
        'coLane',
        { key: 'both' },
        picture(first, second, lane.width_bytes, viewModel),
        div('div', 'note', {}, caption(first, second, lane, viewModel))
      )
    : null;
}

function caption(
  first: ISessionView,
  second: ISessionView,
  lane: ILaneView,
  { trans, nameOf }: IViewModel
): string {
  const needed = first.ephemeral_bytes + second.ephemeral_bytes;
  return trans.__(
    '%1 (from below) and %2 (from above) compute at once in %3, and one waits where both need more. In lanes of their own they would take %4.',
    stem(nameOf(first)),
    stem(nameOf(second)),
    bytes(lane.width_bytes),
    bytes(needed)
  );
}

function picture(
  first: ISessionView,
  second: ISessionView,
  width: number,
  { trans, nameOf }: IViewModel
): INode | null {
  const curves = [first.curve, second.curve];
  if (!curves.some(curve => curve)) {
    return null; // nothing is known of their iterations so far
  }
  const label = trans.__(
    'What an iteration has of the lane over its time: %1 from below, %2 from above',
    nameOf(first),
    nameOf(second)
  );
  return svg(
    'curves',
    label,
    `0 0 ${HIGH} ${HIGH}`,
    h('path', { class: 'jp-GpuShare-below', d: area(curves[0], width, HIGH) }),
    h('path', { class: 'jp-GpuShare-above', d: area(curves[1], width, 0) })
  );
}

/** Steps of a curve, away from the end of the lane at that height. */
function area(
  curve: ICurve | null | undefined,
  width: number,
  end: number
): string {
  if (!curve) {
    return '';
  }
  const wide = HIGH / curve.percent.length;
  const steps = curve.percent.map(part => {
    const has = Math.min(1, ((part / 100) * curve.peak_bytes) / width) * HIGH;
    return `V${(end === 0 ? has : HIGH - has).toFixed(1)}h${wide.toFixed(3)}`;
  });
  return `M0 ${end}${steps.join('')}V${end}z`;
}
