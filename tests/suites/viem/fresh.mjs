// A chain of its own for each file of tests.
import { beforeAll } from 'vitest'

beforeAll(() => fetch('http://127.0.0.1:8545/1/restart'), 60_000)
