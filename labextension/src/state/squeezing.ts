/** How far a notebook is squeezed, in words; pure. */

import { bytes, ITranslate } from './format';
import { ISqueezing } from './snapshot';

/**
 * `to 39.0 MiB of 120 MiB (asked 10.0 MiB, floor 39.0 MiB), about 30 % slower,
 * 210 MiB written`. jupyter_gpushare/tools/overview.py has the same rule.
 */
export function squeezed(found: ISqueezing, trans: ITranslate): string {
  const known = (count: number | null) =>
    count === null ? trans.__('unknown') : bytes(count);
  const reached = known(found.reached_bytes);
  const floor = known(found.floor_bytes);
  const size =
    found.whole_bytes === null
      ? trans.__('to %1', reached)
      : trans.__('to %1 of %2', reached, bytes(found.whole_bytes));
  const bounds =
    found.asked_bytes === null
      ? trans.__('floor %1', floor)
      : trans.__('asked %1, floor %2', bytes(found.asked_bytes), floor);
  return [
    `${size} (${bounds})`,
    slower(found.slowdown, trans),
    trans.__('%1 written', bytes(found.written_bytes))
  ].join(', ');
}

function slower(slowdown: number | null, trans: ITranslate): string {
  if (slowdown === null) {
    return trans.__('slowdown unknown');
  }
  const percent = Math.round(100 * (slowdown - 1));
  return percent
    ? trans.__('about %1 % slower', percent)
    : trans.__('not slower');
}
