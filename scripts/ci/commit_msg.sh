#!/usr/bin/env bash
# Checks commit messages: a subject `area: imperative` of at most 60 characters, a blank line, a body that says why.
#
# usage: scripts/ci/commit_msg.sh FILE     one message, as git calls its commit-msg hook
#        scripts/ci/commit_msg.sh          each commit after $COMMIT_BASE, merges left out, as `make lint` does; after the last commit
#                                          before the rule if it is not set or no ancestor
set -euo pipefail
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"

# The last commit before the rule. A later base, such as a pull request's, leaves out what was judged when it was merged.
RULE=f70b5746c0ba4066910b98b4125180effe71357c
BASE=${COMMIT_BASE:-$RULE}

# Prints what is wrong with a message; $1 names it.
faults() {
    local name=$1 subject second body
    { IFS= read -r subject; IFS= read -r second; body=$(grep -v '^[[:space:]]*$' || true); } || true
    [[ $subject =~ ^[a-z][a-z0-9_/.,-]*:\ [^[:space:]] ]] || echo "$name: \"$subject\" is not \"area: imperative\""
    ((${#subject} <= 60)) || echo "$name: the subject has ${#subject} characters, at most 60: \"$subject\""
    [[ $subject != *. ]] || echo "$name: the subject ends with a full stop: \"$subject\""
    [[ -z $second && -n $body ]] || echo "$name: below \"$subject\", a blank line and a body that says why"
}

if [[ $# -gt 0 ]]; then
    # Git's own comments go, and so does the diff of `commit --verbose`; what --autosquash will fold has no message of its own.
    message=$(sed '/^# -* >8 -*$/,$d; /^#/d' "$1")
    [[ $message != fixup!* && $message != squash!* && $message != Merge\ * ]] || exit 0
    found=$(faults "commit message" <<<"$message")
else
    cd "$(dirname "$0")/../.."
    # A branch that was pushed anew has a base that this clone lacks; a new one has all zeros.
    git merge-base --is-ancestor "$BASE" HEAD 2>/dev/null || BASE=$RULE
    if ! git merge-base --is-ancestor "$BASE" HEAD 2>/dev/null; then
        echo "SKIP commit messages: this clone does not reach back to ${BASE:0:7}"
        exit 0
    fi
    found=
    for commit in $(git rev-list --no-merges "$BASE..HEAD"); do
        found+=$(git show --no-patch --format=%B "$commit" | faults "${commit:0:9}")$'\n'
    done
fi
found=$(grep . <<<"$found" || true)
[[ -z $found ]] || { echo "$found" >&2; exit 1; }
