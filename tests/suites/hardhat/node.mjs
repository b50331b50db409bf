// A node for a file of tests: NODE_COMMAND is its command line, in which the port is 0, so that it takes a free one and prints it.
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'

/** Starts a node that ends with this process, and returns its URL. */
export async function start() {
  const [program, ...args] = process.env.NODE_COMMAND.split(' ')
  const node = spawn(program, args, { stdio: ['ignore', 'pipe', 'ignore'] })
  process.once('exit', () => node.kill('SIGKILL'))
  const printed = []
  for await (const line of createInterface(node.stdout)) {
    printed.push(line)
    const [, address] = /[Ll]isten(?:s|ing) on (?:http:\/\/)?([\d.]+:\d+)/.exec(line) ?? []
    if (!address) continue
    node.stdout.resume()
    node.stdout.unref()
    node.unref()
    return `http://${address}`
  }
  throw new Error(`the node ended: ${printed.join('\n')}`)
}
