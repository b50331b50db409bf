// The node under test, behind a proxy on the port and the paths that viem's tests use: NODE_COMMAND is its command line, in which PORT
// stands for its port, and NODE_PORT that port.
import { spawn } from 'node:child_process'
import { createServer, request as ask } from 'node:http'
import { connect } from 'node:net'

const port = Number(process.env.NODE_PORT)
let running

async function start() {
  const [program, ...args] = process.env.NODE_COMMAND.replaceAll('PORT', port).split(' ')
  const node = spawn(program, args, { stdio: 'ignore' })
  running = node
  for (let tries = 0; tries < 600; tries += 1) {
    const answered = await fetch(`http://127.0.0.1:${port}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}',
    }).catch(() => null)
    if (answered?.ok) return
    await new Promise((done) => setTimeout(done, 20))
  }
  throw new Error('the node does not answer')
}

async function stop() {
  const node = running
  if (!node || node.exitCode !== null) return
  const ended = new Promise((done) => node.once('exit', done))
  node.kill('SIGKILL')
  await ended
}

export default async function setup() {
  await start()
  const server = createServer(async (request, response) => {
    if (request.url.endsWith('/restart')) {
      await stop()
      await start()
      return response.end('ok')
    }
    const { method, headers } = request
    const onward = ask({ host: '127.0.0.1', port, method, path: '/', headers: { ...headers, host: `127.0.0.1:${port}` } }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers)
      answer.pipe(response)
    })
    onward.on('error', () => response.destroy())
    request.pipe(onward)
  })
  server.on('upgrade', (request, socket, head) => {
    const onward = connect(port, '127.0.0.1', () => {
      const lines = Object.entries(request.headers).map(([name, value]) => `${name}: ${name === 'host' ? `127.0.0.1:${port}` : value}\r\n`)
      onward.write(`GET / HTTP/1.1\r\n${lines.join('')}\r\n`)
      onward.write(head)
      socket.pipe(onward).pipe(socket)
    })
    for (const end of [onward, socket]) end.on('error', () => (onward.destroy(), socket.destroy()))
  })
  await new Promise((done) => server.listen(8545, '127.0.0.1', done))
  return async () => {
    server.closeAllConnections()
    server.close()
    await stop()
  }
}
