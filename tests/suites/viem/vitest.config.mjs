import { join } from 'node:path'
import { defineConfig } from 'vitest/config'

const root = import.meta.dirname
export default defineConfig({
  root,
  test: {
    alias: [
      { find: '~contracts', replacement: join(root, 'contracts') },
      { find: '~test', replacement: join(root, 'test/src') },
      { find: /^viem$/, replacement: join(root, 'src/index.ts') },
      { find: /^viem\/(.*)/, replacement: join(root, 'src/$1') },
    ],
    include: ['src/actions/{test,wallet,public}/*.test.ts'],
    setupFiles: [join(root, 'fresh.mjs'), join(root, 'test/setup.ts')],
    globalSetup: [join(root, 'node.mjs')],
    fileParallelism: false,
    maxWorkers: 1,
    hookTimeout: 20_000,
    testTimeout: 15_000,
    reporters: ['json'],
    outputFile: process.env.REPORT,
  },
})
