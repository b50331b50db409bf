// A request as a program that one can run: with curl, viem or alloy.

export const languages = { curl, viem, alloy };

function curl({ http }, method, params, hasToken) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const token = hasToken ? ` -H "authorization: Bearer $PRESIM_TOKEN"` : "";
  return `curl -s ${http} -H 'content-type: application/json'${token} -d '${body.replaceAll("'", "'\\''")}'`;
}

function viem({ http }, method, params, hasToken) {
  const options = hasToken ? ", { fetchOptions: { headers: { authorization: `Bearer ${process.env.PRESIM_TOKEN}` } } }" : "";
  return `import { createPublicClient, http } from 'viem'

const client = createPublicClient({ transport: http('${http}'${options}) })
const result = await client.request({
  method: '${method}',
  params: ${JSON.stringify(params, null, 2).replaceAll("\n", "\n  ")},
})
console.log(result)
`;
}

function alloy({ http }, method, params, hasToken) {
  const json = JSON.stringify(params, null, 4).replaceAll("\n", "\n    ");
  const connect = hasToken
    ? `    let token = format!("Bearer {}", std::env::var("PRESIM_TOKEN")?);
    let headers = [(reqwest::header::AUTHORIZATION, token.parse()?)].into_iter().collect();
    let http = reqwest::Client::builder().default_headers(headers).build()?;
    let provider = ProviderBuilder::new().connect_reqwest(http, "${http}".parse()?);`
    : `    let provider = ProviderBuilder::new().connect_http("${http}".parse()?);`;
  return `use alloy_provider::{Provider, ProviderBuilder};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
${connect}
    let params = json!(${json});
    let result: Value = provider.raw_request("${method}".into(), params).await?;
    println!("{result:#}");
    Ok(())
}
`;
}
