package proto

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/nbd-wtf/go-nostr"
)

// ErrSubject is wrapped by every error of a subject or key parser: the text was made by none of the
// builders of this package. What is returned beside it means nothing.
var ErrSubject = errors.New("not a subject of this form")

// notOf says that a subject or key is not of a form.
func notOf(form, subject string) error { return fmt.Errorf("%s %q: %w", form, subject, ErrSubject) }

// tokens are those of a subject behind its prefix. Anything is refused that has not as many.
func tokens(form, prefix, subject string, count int) ([]string, error) {
	rest, ok := strings.CutPrefix(subject, prefix)
	all := strings.Split(rest, ".")
	if !ok || len(all) != count {
		return nil, notOf(form, subject)
	}
	return all, nil
}

// inbox is the last token of a subject to which a stranger may have us answer.
func inbox(form, prefix, subject string) (string, error) {
	name, ok := strings.CutPrefix(subject, prefix)
	if !ok || name == "" || len(name) > 64 || strings.ContainsFunc(name,
		func(r rune) bool { return r > 'z' || !isPlain(byte(r)) }) {
		return "", notOf(form, subject)
	}
	return name, nil
}

// ShortIDLength is how many hex digits of an event id (or of a hash of a `d` tag) stand in a
// subject: 128 bits, so that two events cannot be made to meet on one subject, where the log would
// keep only one of them.
const ShortIDLength = 32

// Subject prefixes. What follows a prefix is said at its builder.
const (
	prefixEvent     = "grasp.event."
	prefixCandidate = "grasp.candidate."
	prefixRejected  = "grasp.rejected."
	prefixTarget    = "grasp.target."
	prefixWanted    = "grasp.wanted."
	prefixVerdict   = "grasp.verdict."
	prefixGit       = "grasp.git."
	prefixEphemeral = "grasp.ephemeral."

	// AnyCandidate are the subjects of all candidates, AnyGit those of all notices of git data.
	AnyCandidate = prefixCandidate + ">"
	AnyGit       = prefixGit + ">"

	// AnyEphemeral are the subjects of all ephemeral events.
	AnyEphemeral = prefixEphemeral + ">"

	// AnyEvent are the subjects of all accepted events.
	AnyEvent = prefixEvent + ">"

	// SubjectEventsMark is where a new writer marks the log GRASP_EVENTS; the mark moves the head,
	// which fences every older writer.
	SubjectEventsMark = "grasp.mark.events"
	// SubjectQueryIDs is the micro service that does the asking side of a reconciliation with a relay
	// (NIP-77), one message at a time, over the ids that are accepted, held or rejected: see
	// [ReconcileQuery].
	SubjectQueryIDs = "grasp.query.ids"
	// ServiceQuery is the name of that micro service.
	ServiceQuery = "grasp-query"
	// SubjectProgress is where every process tells each second how far it has read, see [Progress].
	SubjectProgress = "grasp.progress"
	// SubjectQueryEvents is the micro service that answers with the accepted events for a filter,
	// or their ids, see [EventsQuery].
	SubjectQueryEvents = "grasp.query.events"
	// SubjectManage is where ingest is asked to do what an operator's client wants (NIP-86), see
	// [ManageRequest].
	SubjectManage = "grasp.manage"
	// ServiceEvents is the name of the micro service that answers SubjectQueryEvents.
	ServiceEvents = "grasp-events"
	// SubjectFetch is where ingest says which events relay workers should ask for by their ids, see
	// [Fetch].
	SubjectFetch = "grasp.fetch"
	// SubjectWhy is where operators ask every ingest replica what it has refused lately, see [Why].
	SubjectWhy = "grasp.why"

	// HeldMarkKey is the key in the bucket grasp-held that a new writer marks, for the same reason.
	// Keys of held events begin with a shard number and never meet it.
	HeldMarkKey = "mark"
)

// Lane is one of the ways to ingest, each with its own subject; see [Streams]. User, release and
// live are urgent and take turns; the others are bulk.
type Lane string

// The lanes.
const (
	LaneUser         Lane = "user"
	LaneRelease      Lane = "release"
	LaneSyncLive     Lane = "sync.live"
	LaneSyncHistoric Lane = "sync.historic"
	LaneSyncDaily    Lane = "sync.daily"
	LaneImport       Lane = "import" // what an operator's file has, see `tendril import`
)

// Subject is where candidates of the lane are published.
func (l Lane) Subject() string { return prefixCandidate + string(l) }

// ParseLane reads the lane from a candidate's subject.
func ParseLane(subject string) (Lane, error) {
	switch l := Lane(strings.TrimPrefix(subject, prefixCandidate)); l {
	case LaneUser, LaneRelease, LaneSyncLive, LaneSyncHistoric, LaneSyncDaily, LaneImport:
		return l, nil
	}
	return "", notOf("candidate", subject)
}

// AnyEventOf are the subjects of all accepted events of a kind.
func AnyEventOf(kind int) string { return prefixEvent + strconv.Itoa(kind) + ".>" }

// EventSubject is a subject of GRASP_EVENTS, `grasp.event.<kind>.<pubkey>.<slot>`: the identity of
// an event, or, where newer events replace older ones, of the place that they replace each other
// in.
type EventSubject struct {
	Kind   int
	PubKey string // 64 hex digits
	Slot   string // short id of a regular event, "_" of a replaceable one, short hash of `d` of an addressable one
}

// EventSubjectOf names the place of an event in the log. Its id and pubkey must be valid lower-case
// hex of 64 digits.
func EventSubjectOf(ev *nostr.Event) EventSubject {
	s := EventSubject{Kind: ev.Kind, PubKey: ev.PubKey}
	switch {
	case nostr.IsReplaceableKind(ev.Kind):
		s.Slot = "_"
	case nostr.IsAddressableKind(ev.Kind):
		sum := sha256.Sum256([]byte(ev.Tags.GetD()))
		s.Slot = hex.EncodeToString(sum[:])[:ShortIDLength]
	default:
		s.Slot = ShortID(ev.ID)
	}
	return s
}

// String is the subject itself.
func (s EventSubject) String() string {
	var room [len(prefixEvent) + 5 + 1 + 64 + 1 + ShortIDLength]byte // what it usually needs
	b := append(strconv.AppendInt(append(room[:0], prefixEvent...), int64(s.Kind), 10), '.')
	return string(append(append(append(b, s.PubKey...), '.'), s.Slot...))
}

// AnyEventWith are the subjects of the event with an id, of any kind and author; not those of
// replaceable and addressable events.
func AnyEventWith(id string) string { return prefixEvent + "*.*." + ShortID(id) }

// ParseEventSubject is the inverse of [EventSubject.String].
func ParseEventSubject(subject string) (s EventSubject, err error) {
	parts, err := tokens("event", prefixEvent, subject, 3)
	if err != nil {
		return s, err
	}
	kind, ok := parseKind(parts[0])
	if !ok || !isHex(parts[1], 64) || parts[2] != "_" && !isHex(parts[2], ShortIDLength) {
		return s, notOf("event", subject)
	}
	return EventSubject{Kind: kind, PubKey: parts[1], Slot: parts[2]}, nil
}

// EphemeralSubject is where ingest tells every gateway of an ephemeral event that it lets through,
// `grasp.ephemeral.<kind>.<pubkey>`. No stream keeps it.
func EphemeralSubject(ev *nostr.Event) string {
	return prefixEphemeral + strconv.Itoa(ev.Kind) + "." + ev.PubKey
}

// RejectedSubject is a subject of GRASP_REJECTED, `grasp.rejected.<kind>.<short id>`.
type RejectedSubject struct {
	Kind    int
	ShortID string
}

// String is the subject itself.
func (s RejectedSubject) String() string {
	return prefixRejected + strconv.Itoa(s.Kind) + "." + s.ShortID
}

// AnyRejectedWith are the subjects of the rejection of an event of any kind.
func AnyRejectedWith(id string) string { return prefixRejected + "*." + ShortID(id) }

// ParseRejectedSubject is the inverse of [RejectedSubject.String].
func ParseRejectedSubject(subject string) (s RejectedSubject, err error) {
	parts, err := tokens("rejection", prefixRejected, subject, 2)
	if err != nil {
		return s, err
	}
	kind, ok := parseKind(parts[0])
	if !ok || !isHex(parts[1], ShortIDLength) {
		return s, notOf("rejection", subject)
	}
	return RejectedSubject{Kind: kind, ShortID: parts[1]}, nil
}

// TargetSubject is where it is said that a relay is a target, `grasp.target.<relay>`. key is the
// relay's identity, "host[:port][/path]".
func TargetSubject(key string) (string, error) {
	name, err := EncodeRelay(key)
	return prefixTarget + name, err
}

// ParseTargetSubject returns the relay's identity back.
func ParseTargetSubject(subject string) (string, error) {
	name, ok := strings.CutPrefix(subject, prefixTarget)
	if !ok {
		return "", notOf("target", subject)
	}
	return DecodeRelay(name)
}

// AnyTarget are the subjects of all relays that are targets.
const AnyTarget = prefixTarget + ">"

// AnyWanted are the subjects of all that is wanted of repositories from relays.
const AnyWanted = prefixWanted + ">"

// relayEnd ends the tokens of a relay's name. No name has such a token.
const relayEnd = "." + emptyToken + "."

// prefixRef begins references to repositories.
const prefixRef = "30617:"

// WantedSubject is where it is said what is wanted of one repository from one relay,
// `grasp.wanted.<relay>.=.<pubkey>.<identifier>`. ref is the repository's reference,
// 30617:<pubkey>:<identifier>.
func WantedSubject(key, ref string) (string, error) {
	name, err := EncodeRelay(key)
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(ref, prefixRef)
	pubkey, identifier, two := strings.Cut(rest, ":")
	if !ok || !two {
		return "", notOf("reference", ref)
	}
	owner, err := EncodeIdentifier(pubkey)
	if err != nil {
		return "", err
	}
	token, err := EncodeIdentifier(identifier)
	return prefixWanted + name + relayEnd + owner + "." + token, err
}

// AnyWantedOf are the subjects of what is wanted from one relay, by its name as [EncodeRelay]
// writes it.
func AnyWantedOf(name string) string { return prefixWanted + name + relayEnd + ">" }

// ParseWantedSubject returns the relay's identity and the repository's reference.
func ParseWantedSubject(subject string) (key, ref string, err error) {
	rest, ok := strings.CutPrefix(subject, prefixWanted)
	name, repo, two := strings.Cut(rest, relayEnd)
	owner, token, three := strings.Cut(repo, ".")
	key, errKey := DecodeRelay(name)
	pubkey, errOwner := DecodeIdentifier(owner)
	if !ok || !two || !three || errKey != nil || errOwner != nil || strings.Contains(pubkey, ":") {
		return "", "", notOf("wanted", subject)
	}
	identifier, err := DecodeIdentifier(token)
	return key, prefixRef + pubkey + ":" + identifier, err
}

// VerdictSubject is where verdicts for one sender of candidates go, `grasp.verdict.<inbox>`. It
// stands under `grasp.` rather than `_INBOX.` so that `nats sub 'grasp.>'` shows how every
// candidate ended. inbox must be a token of letters and digits.
func VerdictSubject(inbox string) string { return prefixVerdict + inbox }

// ParseVerdictSubject returns the inbox back. Ingest answers to nothing else.
func ParseVerdictSubject(subject string) (string, error) {
	return inbox("verdict", prefixVerdict, subject)
}

// GitVerb says what happened with the git data of an identifier.
type GitVerb string

// The git happenings that purgatory tells on `grasp.git.<identifier>.<verb>`.
const (
	GitFetched  GitVerb = "fetched"  // a hunt brought objects
	GitFailed   GitVerb = "failed"   // a git server did not
	GitPushed   GitVerb = "pushed"   // a push was accepted
	GitRefused  GitVerb = "refused"  // a push was refused
	GitReleased GitVerb = "released" // an event left purgatory and is served
	GitExpired  GitVerb = "expired"  // an event left purgatory unserved
	GitEnded    GitVerb = "ended"    // a repository is not hosted any more: deleted or moved away by its owner
	GitReturned GitVerb = "returned" // it is hosted again
	GitRemoved  GitVerb = "removed"  // its git data is removed
)

// GitSubject is where a happening with the git data of an identifier is told.
func GitSubject(identifier string, verb GitVerb) (string, error) {
	token, err := EncodeIdentifier(identifier)
	return prefixGit + token + "." + string(verb), err
}

// ParseGitVerb reads the verb of such a subject.
func ParseGitVerb(subject string) (verb GitVerb, is bool) {
	rest, is := strings.CutPrefix(subject, prefixGit)
	_, name, two := strings.Cut(rest, ".")
	return GitVerb(name), is && two
}

// Shards is the number of virtual shards that identifiers fall into (docs/architecture.md).
const Shards = 64

// ShardOf is the shard of an identifier: purgatory's unit of work and of writing to git
// repositories.
func ShardOf(identifier string) int {
	h := fnv.New32a()
	h.Write([]byte(identifier))
	return int(h.Sum32() % Shards)
}

// ShardName is how a shard is written in keys and claims: two digits.
func ShardName(shard int) string { return fmt.Sprintf("%02d", shard) }

// UsageKey is a key of the bucket grasp-usage: what is stored, the kind of the party that pays for
// it, and its name, which is any text.
func UsageKey(what, kind, name string) string {
	return what + "." + kind + "." + base64.RawURLEncoding.EncodeToString([]byte(name))
}

// ParseUsageSubject takes the subject of such a key apart.
func ParseUsageSubject(subject string) (what, kind, name string, err error) {
	parts, err := tokens("usage", KVSubject(BucketUsage, ""), subject, 3)
	if err != nil {
		return "", "", "", err
	}
	decoded, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return "", "", "", notOf("usage", subject)
	}
	return parts[0], parts[1], string(decoded), nil
}

// HeldKey is the key in the bucket grasp-held of an event that waits for the git data of an
// identifier: `<shard>.<identifier>.<kind>.<public key>.<short id>`. A PR update that names no
// repository has the identifier of its PR.
func HeldKey(identifier string, ev *nostr.Event) (string, error) {
	of, err := AnyHeld(identifier, ev.Kind, ev.PubKey)
	return strings.TrimSuffix(of, "*") + ShortID(ev.ID), err
}

// AnyHeld are the keys of what is held of an identifier, a kind and an author ("*": of any).
func AnyHeld(identifier string, kind int, author string) (string, error) {
	token, err := EncodeIdentifier(identifier)
	if err != nil {
		return "", err
	}
	return ShardName(ShardOf(identifier)) + "." + token + "." + strconv.Itoa(kind) + "." + author + ".*", nil
}

// AnyHeldWith are the keys of an event that is held for any identifier.
func AnyHeldWith(id string) string { return "*.*.*.*." + ShortID(id) }

// ClaimKey is a key of grasp-claims, `<group>.<name>`: group is a service, name an encoded relay or
// a shard.
func ClaimKey(group, name string) string { return group + "." + name }

// ParseClaimKey is the inverse of [ClaimKey].
func ParseClaimKey(key string) (group, name string, err error) {
	group, name, ok := strings.Cut(key, ".")
	if !ok || group == "" || name == "" {
		return "", "", notOf("claim", key)
	}
	return group, name, nil
}

// ShortID is the part of an event id that stands in subjects and keys.
func ShortID(id string) string { return id[:min(len(id), ShortIDLength)] }

func parseKind(s string) (int, bool) {
	kind, err := strconv.ParseUint(s, 10, 16)
	// Only the canonical spelling: "+1" and "01" would give one event two subjects.
	return int(kind), err == nil && strconv.FormatUint(kind, 10) == s
}

func isHex(s string, length int) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return len(s) == length
}
