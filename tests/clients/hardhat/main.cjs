// The helpers of hardhat-network-helpers 1.x, all of them, run by hardhat 2 on presim --testing. PRESIM_TESTING_URL is the node's URL.
const helpers = require('@nomicfoundation/hardhat-network-helpers')
const { network } = require('hardhat')
const claims = require('./claims.cjs')

claims(helpers, (method, ...params) => network.provider.request({ method, params })).then(
  () => console.log('hardhat: all claims of its helpers hold'),
  (error) => {
    console.error(error)
    process.exit(1)
  },
)
