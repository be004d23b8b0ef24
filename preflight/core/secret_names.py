"""Whether the name of a variable, an option, a field or a header says that its value is a secret.

A name is read as English reads it: the last noun says what it is ("API key"), the words before it say of what kind
("cache key"), and a word after it says something about it ("password file"). The knowledge is the sets below.
"""

import re
from enum import IntEnum
from functools import lru_cache


class Certainty(IntEnum):
    """How surely a value under this name is a secret."""

    NONE = 0
    RANDOM = 1
    """Only if it looks random (`key=...`)."""
    UNUSUAL = 2
    """Unless it is a number, an ordinary word or a path (`auth=...`)."""
    SURE = 3


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


SECRETS = _set(
    """password passwd passphrase passcode secret credential cred creds apikey jwt bearer otp totp psk dsn cookie
    webhook mnemonic sas authorization connstr storepass"""
)
"""Nouns for a secret of any kind."""
JOINED = ("password", "passwd", "passphrase", "passcode", "secret", "credential", "apikey", "connstr")
"""Those of SECRETS that also end a word without a separator: PGPASSWORD."""
ALONE = {
    "key": Certainty.RANDOM, "token": Certainty.SURE, "pass": Certainty.UNUSUAL, "pw": Certainty.UNUSUAL,
    "pwd": Certainty.UNUSUAL, "auth": Certainty.UNUSUAL, "pin": Certainty.UNUSUAL, "pat": Certainty.NONE,
    "signature": Certainty.RANDOM, "sig": Certainty.RANDOM,
}  # fmt: skip
"""Nouns that also mean something else: what they are without a word before them."""
PASSWORDS = ("pass", "pw", "pwd")
"""Those of ALONE that are a password in any name that says nothing else: foo_pass, but not forward_pass."""
OF_SECRETS = _set(
    """access account acme admin ads aes age amz anthropic api app artifactory atlas auth aws azure basic bearer bind
    bitbucket bot broker cert ci cipher circleci client cloud cloudflare cohere comet consumer consul crypto cuda-ngc
    database databricks datadog db dd decryption deploy deployment digitalocean discord docker ed25519 elastic email
    encryption es etcd fernet firebase ftp gcp gcs gemini gh git gitea gitlab github google gpg grafana groq heroku hf
    hmac hub huggingface id identity imap ipmi jdbc jenkins jupyter jwt kafka key kaggle keystore kube kubernetes ldap
    license login mail mailgun master mattermost mfa minio mistral mlflow mongo mongodb mq mysql neptune newrelic ngc
    npm nvapi oauth oauth2 odoo okta openai openrouter ora oracle pagerduty pg pgp pinecone postgres postgresql private
    priv prometheus proxy pypi query rabbitmq redis refresh registry replicate root rsa s3 sasl secret security sendgrid
    sentry server service session shared sign signing slack slurm smb smtp snowflake sql squid ssh ssl storage
    stripe subscription sudo svn telegram tls trust truststore twilio user usr vault vnc vpn wandb web wg wifi
    wireguard x-auth zookeeper"""
)
"""Words before such a noun that make it a secret."""
HARMLESS = _set(
    """public pub primary foreign cache sort partition group index lookup dict state sample sampler row column hot
    composite unique join label image audio video caption text input output prompt completion target source context
    query-key value attn attention missing unexpected unknown duplicate invalid wrong extra config store feature metric
    loss monitor translation registry-key routing message param parameter weight tensor buffer eos bos eot pad unk mask
    sep cls special max min num n total valid train training val validation eval test padding stop start begin end new
    generated cached per speech time word illegal reserved draft dummy placeholder additional think tool first second
    third last next previous prev final forward fwd backward bwd single multi one two render optimizer compiler fx graph
    grad inductor dynamo lowering cpu core numa gpu mem memory thread omp process function method type call class old
    st nd rd th by com sur tres under over encom sub"""
)
"""Words before such a noun that make it something else: a cache key, an EOS token, a forward pass, a CPU's pin, the
last three the English words that end in "pass"."""
ABOUT = _set(
    """file path dir directory folder url uri endpoint host port server service provider name names type types kind id
    ids index length len size min max count counts num number total limit quota ttl timeout expiry expires expiration
    expire age lifetime seconds s ms hours enabled enable required disabled method mode format scheme algorithm algo alg
    version policy rule rules pattern regex prompt field column env var variable class cls rotation strength embedding
    embeddings mask padding per heads head dim error exception interrupt parallelism backend store ring sock socket
    agent cache loader reader point through rate ratio domain issuer audience realm memory py sh c cc cpp h rs go js
    md log txt stdin fd"""
)
"""Words after a noun that speak of it and are not it: a password's file, a token's type, an error about a key."""
SAME = _set(
    """value string text raw plain hash b64 base64 hex enc encoded old new prev previous current prod production dev
    v pem staging test default primary secondary main backup base config data ro rw admin root user"""
)
"""Words after a noun that change nothing."""
_COMPOUNDS = (
    (re.compile(r"\bconn(?:ection)? ?str(?:ing)?\b"), "connstr"),
    (re.compile(r"\baccess key id\b"), "access key"),
    (re.compile(r"\bwebhook ur[il]\b"), "webhook"),
)
_WITH_DIGITS = re.compile(r"\b(oauth|b|s|ed) (?=(?:2|64|32|3|25519)\b)")
"""Words that end in a number: oauth2, b64, s3, ed25519."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@lru_cache(maxsize=4096)
def certainty(name: str) -> Certainty:
    """How surely `name` is a secret's: SURE for WANDB_API_KEY, db.password and authToken, NONE for eos_token, MONKEY
    and PASSWORD_FILE. Of a dotted name the last part decides."""
    parts = [_words(part) for part in name.split(".")]
    while len(parts) > 1 and all(word in SAME or word.isdigit() for word in parts[-1]):
        parts[-2:] = [[*parts[-2], *parts[-1]]]
    owner = parts[-2][-1:] if len(parts) > 1 and parts[-2][-1:] and parts[-2][-1] in OF_SECRETS else []
    return _of_words([*owner, *parts[-1]], is_constant=name.isupper(), is_identifier=" " not in name)


def _words(part: str) -> list[str]:
    text = " ".join(word.lower() for word in _WORD.findall(part))
    text = _WITH_DIGITS.sub(r"\1", text)
    for pattern, noun in _COMPOUNDS:
        text = pattern.sub(noun, text)
    return [piece for word in text.split() for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    """ "sshpass" is "ssh", "pass"; a word that only ends like a noun (monkey, compass) stays whole."""
    if word in ABOUT or _noun(word):
        return [word]
    for spelled in (word, word.removesuffix("s")):
        for noun in (*JOINED, "key", "token", "pass", "pwd", "pw"):
            before = spelled.removesuffix(noun)
            if before != spelled and (noun in JOINED or _may_be_joined(before, noun)):
                return [before, noun]
    return [word]


def _may_be_joined(before: str, noun: str) -> bool:
    """Before "key" English has too many other words."""
    return (
        any(before.endswith(word) for word in OF_SECRETS if len(word) > 2) if noun == "key" else before not in HARMLESS
    )


def _of_words(words: list[str], *, is_constant: bool, is_identifier: bool) -> Certainty:
    """`is_constant`: the name is in capitals, as a variable of the environment is. `is_identifier`: it is no words of a
    sentence."""
    at = next((at for at in reversed(range(len(words))) if _noun(words[at])), None)
    if at is None:
        return Certainty.NONE
    noun, after = _noun(words[at]), [word for word in words[at + 1 :] if not word.isdigit()]
    if not ABOUT.isdisjoint(after):
        return Certainty.NONE
    if noun in SECRETS:
        return Certainty.SURE
    sure = _of_noun(noun, words[:at], is_constant=is_constant, is_identifier=is_identifier)
    if noun != words[at]:  # counts are plural: 12 access tokens
        sure = min(sure, Certainty.UNUSUAL)
    return sure if SAME.issuperset(after) else min(sure, Certainty.RANDOM)


def _noun(word: str) -> str:
    known = SECRETS | ALONE.keys()
    return word if word in known else word.removesuffix("s") if word.removesuffix("s") in known else ""


def _of_noun(noun: str, before: list[str], *, is_constant: bool, is_identifier: bool) -> Certainty:
    """The nearest known word before it decides."""
    for word in reversed(before):
        if word in OF_SECRETS:
            return Certainty.SURE
        if word in HARMLESS:
            return Certainty.RANDOM if is_constant else Certainty.NONE
    if noun == "pin" and not before and is_constant:
        return Certainty.SURE
    if not before or all(word.isdigit() for word in before):
        return ALONE[noun]
    if is_constant or (noun in PASSWORDS and is_identifier):
        return Certainty.SURE
    return Certainty.RANDOM if noun == "key" else Certainty.UNUSUAL
