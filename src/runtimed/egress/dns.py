"""Answers a sandbox's DNS questions without ever passing one on: messages in, what to do and messages out. Pure.

refused name ------------------------> NXDOMAIN, and nobody is asked
allowed, A --name exists-------------> the address that stands for it
           --it does not-------------> NXDOMAIN
           --nobody answers----------> SERVFAIL
allowed, anything else --------------> no such record (so no HTTPS record with an ECH key reaches a client)
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from runtimed.core.network import canonical_name

QUERY_MAX_BYTES = 4096
TTL_S = 30
"""Short, so that a stand-in address that was forgotten is soon asked for anew."""


class BadQuery(Exception):
    """Not a DNS question; there is nothing to answer it with."""


@dataclass(frozen=True)
class Question:
    """One question. `name` is None when it cannot be a host's name: such names do not exist."""

    message: dns.message.QueryMessage
    name: str | None
    shown: str
    wants_address: bool
    """An A record: the only kind that there is."""


def read_query(data: bytes) -> Question:
    """Raises BadQuery."""
    if len(data) > QUERY_MAX_BYTES:
        raise BadQuery("too long")
    try:
        message = dns.message.from_wire(data)
    except (dns.exception.DNSException, ValueError) as wrong:
        raise BadQuery("malformed") from wrong
    if message.flags & dns.flags.QR or not isinstance(message, dns.message.QueryMessage):
        raise BadQuery("not a question")
    if message.opcode() != dns.opcode.QUERY or len(message.question) != 1:
        raise BadQuery("not one question")
    asked = message.question[0]
    shown = asked.name.to_text(omit_final_dot=True)
    name: str | None = None
    if asked.rdclass == dns.rdataclass.IN:
        try:
            name = canonical_name(shown)
        except ValueError:
            name = None
    return Question(message, name, shown[:253], asked.rdtype == dns.rdatatype.A)


def refused(question: Question) -> bytes:
    """The name does not exist here."""
    return _answer(question, dns.rcode.NXDOMAIN)


def failed(question: Question) -> bytes:
    """Whether it exists is not known: nobody answered."""
    return _answer(question, dns.rcode.SERVFAIL)


def nothing(question: Question) -> bytes:
    """The name exists, with no record of this kind."""
    return _answer(question, dns.rcode.NOERROR)


def stands_for(question: Question, address: ipaddress.IPv4Address) -> bytes:
    return _answer(question, dns.rcode.NOERROR, address)


def _answer(question: Question, code: dns.rcode.Rcode, address: ipaddress.IPv4Address | None = None) -> bytes:
    answer = dns.message.make_response(question.message, recursion_available=True)
    answer.set_rcode(code)
    if address is not None:
        asked = question.message.question[0].name
        answer.answer.append(dns.rrset.from_text(asked, TTL_S, "IN", "A", str(address)))
    return answer.to_wire()
