/** The last complete snapshot of the broker, and whether it is valid now. */

import { aged, notBelow } from './aging';
import { COMING_BACK, everyone, isSnapshot, State } from './notebook';
import { ISnapshot } from './snapshot';

/**
 * Milliseconds for which a recovering broker's snapshot is not shown for
 * notebooks that are missing.
 */
const RECOVERY_MS = 10_000;

/**
 * A restarted broker knows no notebook until each has come back. Until then the
 * snapshot before stays, as one that is not valid now, so that no notebook
 * seems to have gone.
 */
export class LastSnapshot {
  /** The snapshot as it was when a state last came; null before the first. */
  get snapshot(): ISnapshot | null {
    return this._snapshot;
  }

  /** Until when the snapshot was valid, on the clock of all times here. */
  get validAt(): number {
    return this._validAt;
  }

  /** Note the state that has come `at` a time in milliseconds. */
  take(state: State, at: number): void {
    if (this._isValid()) {
      this._snapshot = this._aged(at);
      this._validAt = at;
    }
    this._newest = state;
    this._cameAt = at;
    if (!isSnapshot(state)) {
      this._missingSince = null;
    }
    this._adopt(at);
  }

  /**
   * The snapshot as it is by `now`, if it is valid; else why it is not, or that
   * nothing is known.
   */
  state(now: number): State {
    this._adopt(now);
    if (!isSnapshot(this._newest)) {
      return this._newest;
    }
    return this._isValid() ? this._aged(now) : COMING_BACK;
  }

  private _isValid(): boolean {
    return this._snapshot !== null && this._newest === this._snapshot;
  }

  private _aged(now: number): ISnapshot {
    return aged(this._snapshot!, Math.max(0, now - this._validAt) / 1000);
  }

  private _adopt(now: number): void {
    if (
      !this._isValid() &&
      isSnapshot(this._newest) &&
      !this._isComingBack(this._newest, now)
    ) {
      this._newest = notBelow(this._newest, this._snapshot);
      this._snapshot = this._newest;
      this._validAt = this._cameAt;
      this._missingSince = null;
    }
  }

  /**
   * A notebook that has ended meanwhile never comes back, so the wait for it
   * has to end.
   */
  private _isComingBack(state: ISnapshot, now: number): boolean {
    const before = this._snapshot;
    if (!state.broker.recovering || before === null) {
      return false;
    }
    this._missingSince ??= now;
    const back = ids(state);
    return (
      now - this._missingSince < RECOVERY_MS &&
      [...ids(before)].some(id => !back.has(id))
    );
  }

  private _cameAt = 0;
  private _missingSince: number | null = null;
  private _newest: State = null;
  private _snapshot: ISnapshot | null = null;
  private _validAt = 0;
}

function ids(snapshot: ISnapshot): Set<string> {
  return new Set(everyone(snapshot).map(({ id }) => id));
}
