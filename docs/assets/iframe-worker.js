/* A worker for pages that are opened as files, where browsers start none: the script runs in a hidden frame.
   The search of the site needs it. Served by a web server, this does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.body.appendChild(document.createElement("iframe"))
      this.frame.hidden = true
      const inside = this.frame.contentWindow
      inside.postToPage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.document.open()
      inside.document.write(
        `<script>
          const sources = {}
          function postMessage(data) { postToPage(data) }
          function importScripts() {
            return [].slice.call(arguments).reduce((before, source) => before.then(() => new Promise((done, fail) => {
              const script = document.createElement("script")
              script.src = source
              script.onload = done
              script.onerror = fail
              document.body.appendChild(script)
            })), Promise.resolve())
          }
        <\/script><body><script src="${url}"><\/script></body>`
      )
      inside.document.close()
      this.ready = new Promise((done) => { this.frame.onload = done })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    set onmessage(handler) { this.addEventListener("message", handler) }
    terminate() { this.frame.remove() }
  }
}
