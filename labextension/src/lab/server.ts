/** The Jupyter server that JupyterLab speaks with: its socket, and its REST interface. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { NAMESPACE, Send } from '../actions';

export function openSocket(settings: ServerConnection.ISettings): WebSocket {
  const url = URLExt.join(settings.wsUrl, NAMESPACE, 'events');
  const query = settings.appendToken
    ? URLExt.objectToQueryString({ token: settings.token })
    : '';
  return new settings.WebSocket(url + query);
}

export function sendTo(settings: ServerConnection.ISettings): Send {
  return (path, init) => {
    const url = URLExt.join(settings.baseUrl, NAMESPACE, path);
    return ServerConnection.makeRequest(url, init, settings);
  };
}
