//! Signatures of messages (EIP-191, EIP-712).

use std::{borrow::Cow, sync::Arc};

use alloy_dyn_abi::eip712::Eip712Types;
use alloy_primitives::{Address, Bytes};
use alloy_sol_types::Eip712Domain;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::approval::{answer, asker};
use crate::{
    objects::ObjectsOnly,
    rpc::{
        api::{Example, Serve},
        json::{
            self,
            form::{Forms, text},
            hex::{Data, Fixed, parse_fixed},
        },
        params::parse,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    shown::cut,
    wallet::{Asked, MessageToSign, SignatureRequest, TypedMessage, WalletError},
};

/// A signature, for the examples.
const SIGNATURE: &str = r#""0x12646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da77b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c331b""#;

/// Signs a message after the prefix of EIP-191 with an account of the wallet. Errors: 4100 account, 4001 rejected.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: the message, the account")]
pub struct PersonalSign {
    /// Hex data, or text. The account may be first if the message does not look like an address.
    message: String,
    #[schemars(with = "Fixed<20>")]
    account: String,
    /// Ignored: some clients send it, and presim signs without passwords.
    #[serde(rename = "password", default)]
    #[schemars(with = "Option<String>")]
    _password: Option<Value>,
}

impl PersonalSign {
    /// Returns the message and the account, or the account and the message if only the first has an address's form, as wallets
    /// do.
    fn into_request(self) -> Result<SignatureRequest> {
        let Self { message: first, account: second, .. } = self;
        let (account, path, message, message_path) = match (address(&first), address(&second)) {
            (_, Some(account)) => (account, "params[1]", first, "params[0]"),
            (Some(account), None) => (account, "params[0]", second, "params[1]"),
            (None, None) => {
                let shown = cut(&second, 80);
                return Err(RpcError::params(format!(
                    "params[1]: {shown:?}: expected an account: 0x and 40 hex digits"
                )));
            }
        };
        let message = MessageToSign::Personal(message_bytes(message, message_path)?);
        Ok(SignatureRequest { account, path, message })
    }
}

impl Serve for PersonalSign {
    type Part = ();
    type Answer = Data;
    const EXAMPLE: Example =
        Example { params: r#"["hello", "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]"#, answer: SIGNATURE };

    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        sign(runner, request, Self::into_request).await
    }
}

/// Signs a message after the prefix of EIP-191 with an account of the wallet, as `personal_sign` does. Errors: 4100 account, 4001
/// rejected.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: the account, the message")]
pub struct Sign {
    account: Fixed<20>,
    /// Hex data, or text.
    message: String,
}

impl Sign {
    fn into_request(self) -> Result<SignatureRequest> {
        let message = MessageToSign::Personal(message_bytes(self.message, "params[1]")?);
        Ok(SignatureRequest { account: self.account.into(), path: "params[0]", message })
    }
}

impl Serve for Sign {
    type Part = ();
    type Answer = Data;
    const EXAMPLE: Example =
        Example { params: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "0x68656c6c6f"]"#, answer: SIGNATURE };

    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        sign(runner, request, Self::into_request).await
    }
}

/// Signs typed data (EIP-712) with an account of the wallet. Errors: -32602 where types, domain and message do not fit each other or
/// the domain names another chain, 4100 account, 4001 rejected.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "2 parameters: the account, the typed data")]
pub struct SignTypedData {
    account: Fixed<20>,
    typed_data: TypedDataParam,
}

/// Typed data: an object, or its JSON as a string.
#[derive(Debug)]
struct TypedDataParam(TypedDataFields);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypedDataFields {
    types: Eip712Types,
    primary_type: String,
    domain: Eip712Domain,
    /// The message. It may be missing if only the domain is signed.
    #[serde(default)]
    message: Option<Value>,
}

impl SignTypedData {
    fn into_request(self) -> Result<SignatureRequest> {
        let TypedDataParam(TypedDataFields { types, primary_type, domain, message }) = self.typed_data;
        let wrong = |problem: String| RpcError::params(format!("params[1].{problem}"));
        let message = match message {
            Some(message) => message,
            None if primary_type == Eip712Domain::NAME => Value::Object(Map::new()),
            None => {
                return Err(wrong("message: missing: expected an object with the fields of primaryType".to_owned()));
            }
        };
        let message = TypedMessage::new(types, domain, primary_type, message).map_err(wrong)?;
        Ok(SignatureRequest {
            account: self.account.into(),
            path: "params[0]",
            message: MessageToSign::Typed(Box::new(message)),
        })
    }
}

impl Serve for SignTypedData {
    type Part = ();
    type Answer = Data;
    const EXAMPLE: Example = Example {
        params: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", {"types": {"EIP712Domain": [{"name": "name", "type": "string"}], "Mail": [{"name": "text", "type": "string"}]}, "primaryType": "Mail", "domain": {"name": "Post"}, "message": {"text": "hi"}}]"#,
        answer: SIGNATURE,
    };

    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        sign(runner, request, Self::into_request).await
    }
}

/// Signs the message that `read` finds in the parameters `M`, after approval if the policy requires it.
async fn sign<M: DeserializeOwned + 'static>(
    runner: &Arc<RequestRunner>,
    request: Request,
    read: fn(M) -> Result<SignatureRequest>,
) -> Result<Vec<u8>> {
    let check = move |backend: &Backend, run: &mut Attempt<'_>| {
        let message = read(parse(run.params, run.dialect)?)?;
        admit(backend, run, message, write_signature)
    };
    answer(runner, request, None, check, write_signature).await
}

/// Checks a request for a signature. Carries it out by `finish`, or returns it with the question to the approver if the policy requires
/// approval.
pub fn admit(
    backend: &Backend,
    run: &mut Attempt<'_>,
    message: SignatureRequest,
    finish: fn(&Backend, &mut Attempt<'_>, &SignatureRequest) -> Result<()>,
) -> Result<Option<(SignatureRequest, Asked)>> {
    let dialect = run.dialect;
    let refuse = |error: WalletError| dialect.wallet_error(error);
    backend.wallet.check_signature(&message, run.may_use_wallet).map_err(refuse)?;
    if !backend.wallet.policy.ask {
        return finish(backend, run, &message).map(|()| None);
    }
    let meter = std::mem::take(&mut run.meter);
    let asked = backend.wallet.signature_question(&message, asker(run), run.published, run.overlay, meter);
    run.ensure_complete()?;
    Ok(Some((message, asked.map_err(refuse)?)))
}

/// Signs a message that was checked and, if the policy requires it, approved, and writes the signature.
fn write_signature(backend: &Backend, run: &mut Attempt<'_>, message: &SignatureRequest) -> Result<()> {
    let signature = backend.wallet.sign_message(message).map_err(|error| run.dialect.wallet_error(error))?;
    json::data(&mut run.out, &signature.as_bytes());
    Ok(())
}

fn address(text: &str) -> Option<Address> {
    parse_fixed(text).ok().map(Address::new)
}

/// Returns the bytes of a message: the decoded hex digits if it is `0x` and hex digits, else the bytes of its text.
fn message_bytes(text: String, path: &str) -> Result<Bytes> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match digits.map(const_hex::decode) {
        None => Ok(text.into_bytes().into()),
        Some(Ok(bytes)) => Ok(bytes.into()),
        Some(Err(_)) => Err(RpcError::params(format!(
            "{path}: 0x and an odd count of hex digits: expected text, or hex data in whole bytes"
        ))),
    }
}

impl JsonSchema for TypedDataParam {
    fn schema_name() -> Cow<'static, str> {
        "TypedData".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (address, word) = (generator.subschema_for::<Fixed<20>>(), generator.subschema_for::<Fixed<32>>());
        let (text, id) = (generator.subschema_for::<String>(), json_schema!({"type": ["integer", "string"]}));
        let field = json_schema!({
            "type": "object", "properties": {"name": text, "type": text}, "required": ["name", "type"],
        });
        let types = json_schema!({
            "type": "object", "additionalProperties": {"type": "array", "items": field}, "required": ["EIP712Domain"],
        });
        let domain = json_schema!({
            "type": "object",
            "properties": {"name": text, "version": text, "chainId": id, "verifyingContract": address, "salt": word},
        });
        json_schema!({
            "description": "Typed data (EIP-712), or its JSON as a string. message may be missing if primaryType is EIP712Domain.",
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "types": types, "primaryType": text, "domain": domain,
                        "message": {"type": "object", "additionalProperties": true},
                    },
                    "required": ["types", "primaryType", "domain"],
                },
                text,
            ],
        })
    }
}

impl<'de> Deserialize<'de> for TypedDataParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str =
            "typed data: an object with types, primaryType, domain and message, or its JSON as a string";
        const READ: fn(&str) -> Result<TypedDataParam, String> = |text| {
            let mut json = serde_json::Deserializer::from_str(text);
            let parsed = serde_path_to_error::deserialize(ObjectsOnly(&mut json))
                .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
            json.end().map_err(|error| error.to_string())?;
            Ok(TypedDataParam(parsed))
        };
        deserializer.deserialize_any(Forms {
            expected: EXPECTED,
            scalar: |given| text(given).map(READ),
            object: Some(|fields| Ok(Self(fields))),
        })
    }
}
