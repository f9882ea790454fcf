/** The JupyterLab plugin: a panel at the right, a status bar entry and a command. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { GpuShareModel } from './model';
import { GpuSharePanel, GpuShareStatus, lanesIcon } from './widgets';

const PLUGIN_ID = 'jupyter-gpushare:plugin';

const CommandIDs = {
  showPanel: 'jupyter-gpushare:show-panel'
};

function openSocket(settings: ServerConnection.ISettings): WebSocket {
  const url = URLExt.join(settings.wsUrl, 'jupyter-gpushare/api/v1/events');
  const query = settings.appendToken
    ? URLExt.objectToQueryString({ token: settings.token })
    : '';
  return new settings.WebSocket(url + query);
}

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

    const panel = new GpuSharePanel(model, trans);
    app.shell.add(panel, 'right', { rank: 900 });
    restorer?.add(panel, panel.id);

    app.commands.addCommand(CommandIDs.showPanel, {
      label: trans.__('Show GPU Sharing'),
      caption: trans.__('Lanes, notebooks and queue of the shared devices'),
      icon: lanesIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(panel.id)
    });
    palette?.addItem({
      command: CommandIDs.showPanel,
      category: trans.__('GPU')
    });

    if (statusBar) {
      const status = new GpuShareStatus(model, trans, () =>
        app.commands.execute(CommandIDs.showPanel)
      );
      statusBar.registerStatusItem(PLUGIN_ID, {
        item: status,
        align: 'left',
        rank: 900
      });
      void followSettings(registry, status);
    }
  }
};

async function followSettings(
  registry: ISettingRegistry | null,
  status: GpuShareStatus
): Promise<void> {
  const settings = await registry?.load(PLUGIN_ID);
  const apply = () => {
    status.setHidden(settings?.get('statusBar').composite === false);
  };
  settings?.changed.connect(apply);
  apply();
}

export default plugin;
