"""Limits that callers meet, each with its unit and its reason; an operator's configuration may lower them."""

from __future__ import annotations

VCPU_MIN, VCPU_MAX, VCPU_DEFAULT = 1, 16, 2
MEMORY_MIN_MIB, MEMORY_MAX_MIB, MEMORY_DEFAULT_MIB = 128, 65536, 4096
DISK_MIN_MIB, DISK_MAX_MIB, DISK_DEFAULT_MIB = 3072, 409_600, 4096
"""What the guest sees as its disk, the system image included."""

LEASE_MIN_S, LEASE_MAX_S, LEASE_DEFAULT_S = 60, 86_400, 1800
LEASE_AHEAD_MAX_S = 86_400
"""`extend` never moves the end further ahead than this; the wire protocol's figure."""
IDLE_PAUSE_MIN_S, IDLE_PAUSE_MAX_S, IDLE_PAUSE_DEFAULT_S = 60, 86_400, 300

RETENTION_MAX_DAYS, RETENTION_DEFAULT_DAYS = 365, 30
FORKS_MAX = 16
"""Copies by one fork; each is a machine of its own."""
LEASE_NEAR_S = 300
"""A command whose lease ends sooner than this and sooner than its own limit is told."""

LABELS_MAX, LABEL_KEY_MAX_CHARS, LABEL_VALUE_MAX_CHARS, LABELS_MAX_BYTES = 32, 63, 256, 4096
ENV_VARS_MAX, ENV_MAX_BYTES = 32, 32 * 1024
"""Environment of a sandbox, at create and update."""
NAME_MAX_CHARS = 63

EXEC_ENV_VARS_MAX, EXEC_ENV_VALUE_MAX_CHARS, EXEC_ENV_MAX_BYTES = 60, 32_000, 120_000
COMMAND_MAX_BYTES = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN: a longer single argument cannot be given to a program at all."""
ARGV_MAX_ITEMS, ARGV_MAX_BYTES = 4096, 512 * 1024
STDIN_MAX_BYTES = 1 << 20
EXEC_TIMEOUT_DEFAULT_MS, EXEC_TIMEOUT_STREAM_DEFAULT_MS, EXEC_TIMEOUT_MAX_MS = 60_000, 86_400_000, 86_400_000
CAPTURE_BYTES, CAPTURE_LONG_BYTES, CAPTURE_LONG_FROM_MS = 64 * 1024, 1 << 20, 60_000
"""A buffered answer holds this much of each stream; the larger one for timeouts over 60 s."""
OUTPUT_KEPT_BYTES = 1 << 20
"""Newest output of a process that stays readable by cursor."""

FILE_SINGLE_MAX_BYTES = 1 << 20
UPLOAD_CHUNK_BYTES = 1 << 20
PATH_MAX_BYTES = 4095
BODY_MAX_BYTES = 4 << 20
"""A JSON body: a 1 MiB stdin in base64 and room for everything else."""
