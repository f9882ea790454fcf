/** The JupyterLab plugin: a panel at the right, a status bar entry, a toolbar button, commands. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  Dialog,
  ICommandPalette,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { RestActions } from './actions';
import { ITranslate } from './state/format';
import { everyone, stateOf, toChange } from './state/notebook';
import { FrontNotebook } from './lab/front';
import { JobsModel } from './lab/jobs_model';
import { GpuShareModel } from './state/model';
import { namesOf } from './state/names';
import { hadTurns, isSameWait, waits } from './state/queue';
import { ISessionView } from './state/snapshot';
import { openSocket, sendTo } from './lab/server';
import { GpuSharePanel, GpuShareStatus, lanesIcon } from './lab/widgets';
import { answers, question } from './view/cancel';

const PLUGIN_ID = 'jupyter-gpushare:plugin';

const CommandIDs = {
  showPanel: 'jupyter-gpushare:show-panel',
  toggleSharing: 'jupyter-gpushare:toggle-sharing',
  togglePause: 'jupyter-gpushare:toggle-pause',
  cancelWait: 'jupyter-gpushare:cancel-wait'
};

const NO_ARGUMENTS = { args: { type: 'object' as const, properties: {} } };

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Shows lanes, notebooks and queue of the shared devices',
  autoStart: true,
  optional: [
    ITranslator,
    ILayoutRestorer,
    ICommandPalette,
    IStatusBar,
    ISettingRegistry
  ],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    registry: ISettingRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_gpushare');
    const { serverSettings } = app.serviceManager;
    const model = new GpuShareModel(() => openSocket(serverSettings));
    const front = new FrontNotebook(model, app, trans);
    const send = sendTo(serverSettings);
    const actions = new RestActions(send);

    const jobs = new JobsModel(send);
    const panel = new GpuSharePanel(model, front, actions, jobs, trans);
    app.shell.add(panel, 'right', { rank: 900 });
    restorer?.add(panel, panel.id);

    const { commands } = app;
    commands.addCommand(CommandIDs.showPanel, {
      label: trans.__('Show GPU Sharing'),
      caption: trans.__('Lanes, notebooks and queue of the shared devices'),
      icon: lanesIcon,
      describedBy: NO_ARGUMENTS,
      execute: () => app.shell.activateById(panel.id)
    });
    addNotebookCommands(commands, model, front, actions, trans);
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: trans.__('GPU') });
    }

    if (statusBar) {
      const status = new GpuShareStatus(model, front, trans, () =>
        commands.execute(CommandIDs.showPanel)
      );
      statusBar.registerStatusItem(PLUGIN_ID, {
        item: status,
        isActive: () => status.isWanted,
        activeStateChanged: status.wantedChanged,
        align: 'left',
        rank: 900
      });
      void followSettings(registry, status);
    }
  }
};

/** Actions for the notebook in front. */
function addNotebookCommands(
  commands: CommandRegistry,
  model: GpuShareModel,
  front: FrontNotebook,
  actions: RestActions,
  trans: ITranslate
): void {
  const say = (action: Promise<void>): Promise<void> =>
    action.catch(error => {
      Notification.error(`${error.message}`, { autoClose: 8000 });
    });
  const mine = () => toChange(model.viewer, front.session);
  const isOn = () => front.wanted ?? front.session !== null;
  const isPaused = () =>
    front.session !== null && stateOf(front.session) === 'paused';

  commands.addCommand(CommandIDs.toggleSharing, {
    label: trans.__('Share the GPU in This Notebook'),
    caption: () => sharingCaption(front, trans),
    className: () => (front.wanted === null ? '' : 'jp-GpuShare-mod-pending'),
    icon: lanesIcon,
    describedBy: NO_ARGUMENTS,
    isEnabled: () => front.canShare,
    isToggled: isOn,
    execute: () => say(front.share(!isOn()))
  });
  commands.addCommand(CommandIDs.togglePause, {
    label: trans.__('Pause GPU Sharing of This Notebook'),
    describedBy: NO_ARGUMENTS,
    isEnabled: () => mine() !== null,
    isToggled: isPaused,
    execute: () => say(actions.change(mine()!.id, { paused: !isPaused() }))
  });
  commands.addCommand(CommandIDs.cancelWait, {
    label: trans.__('Cancel the Wait for the GPU of This Notebook'),
    describedBy: NO_ARGUMENTS,
    isEnabled: () => {
      const session = mine();
      return session !== null && waits(session);
    },
    execute: () => say(cancelWait(mine()!, model, front, actions, trans))
  });
  front.changed.connect(() => {
    for (const id of Object.values(CommandIDs).slice(1)) {
      commands.notifyCommandChanged(id);
    }
  });
}

/** A cell that has had turns is ended after a question, as in the panel. */
async function cancelWait(
  session: ISessionView,
  model: GpuShareModel,
  front: FrontNotebook,
  actions: RestActions,
  trans: ITranslate
): Promise<void> {
  const { id } = session;
  if (!hadTurns(session, model.known!)) {
    return actions.ask(id, 'cancel');
  }
  const { pause, stop } = answers(trans);
  const name = namesOf(model.known!, front.paths).get(id)!;
  const label = await answerTo(question(session, name, trans), trans);
  if (label !== pause && label !== stop) {
    return;
  }
  const now = everyone(model.known!).find(one => one.id === id);
  if (!isSameWait(session, now)) {
    throw new Error(trans.__('It does not wait as it did: look again.'));
  }
  return label === pause
    ? actions.change(id, { paused: true })
    : actions.ask(id, 'cancel');
}

async function answerTo(body: string, trans: ITranslate): Promise<string> {
  const { pause, stop, keep } = answers(trans);
  const chosen = await showDialog({
    title: stop,
    body,
    buttons: [
      Dialog.okButton({ label: pause }),
      Dialog.warnButton({ label: stop }),
      Dialog.cancelButton({ label: keep })
    ],
    defaultButton: 2 // which Enter presses: it loses nothing
  });
  return chosen.button.label;
}

/**
 * The label of the toolbar button; a click waits for a running cell, and the
 * label says so at once.
 */
function sharingCaption(front: FrontNotebook, trans: ITranslate): string {
  if (!front.isKnown) {
    return trans.__('GPU sharing is looked up for this notebook');
  }
  if (front.wanted === null) {
    return front.session === null
      ? trans.__('GPU sharing is off in this notebook: turn it on')
      : trans.__('GPU sharing is on in this notebook: turn it off');
  }
  if (front.isBusy) {
    return front.wanted
      ? trans.__('Waits for the running cell to end, then turns GPU sharing on')
      : trans.__(
          'Waits for the running cell to end, then turns GPU sharing off'
        );
  }
  return front.wanted
    ? trans.__('Turns GPU sharing on')
    : trans.__('Turns GPU sharing off');
}

async function followSettings(
  registry: ISettingRegistry | null,
  status: GpuShareStatus
): Promise<void> {
  const settings = await registry?.load(PLUGIN_ID);
  const apply = () => {
    status.isWanted = settings?.get('statusBar').composite !== false;
  };
  settings?.changed.connect(apply);
  apply();
}

export default plugin;
