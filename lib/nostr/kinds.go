package nostr

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds of NIP-34, and the ones next to them that a git relay knows by number (NIP-22 comment,
// NIP-09 deletion, NIP-56 report, NIP-62 request to vanish).
const (
	KindPatch, KindPR, KindPRUpdate, KindIssue     = 1617, 1618, 1619, 1621
	KindAnnouncement, KindState, KindUserGraspList = 30617, 30618, 10317
	KindComment, KindDeletion, KindReport          = 1111, 5, 1984
	KindUserGraspSet                               = 10318
	KindVanish                                     = 62
	// KindProfile is what its author writes of themselves (NIP-01), and KindRelayList the relays that
	// its author reads and writes at (NIP-65).
	KindProfile, KindRelayList = 0, 10002
	// Status events say where an issue, a pull request or a patch stands.
	KindStatusOpen, KindStatusApplied, KindStatusClosed, KindStatusDraft = 1630, 1631, 1632, 1633
)

// Bounds of one event. An event that goes beyond is refused whole: a part of it would not be what
// its author signed.
const (
	// MaxListed is the most maintainers, relays and clone URLs together that an announcement may
	// name.
	MaxListed = 1000
	// MaxURLs is the most web URLs of an announcement, or clone URLs of a pull request.
	MaxURLs = 100
	// MaxRefs is the most references that a state may name.
	MaxRefs = 10_000
)

// Kind is what is known of the events of a kind without a look at them. Every part that treats
// kinds differently reads it here, so that a new kind is a line of the table.
type Kind struct {
	Number int
	Name   string // for people; "": they read the number
	// MaxBytes is the most that an event's JSON may have. 0: what the settings say.
	MaxBytes int
	// Decides: its events decide about other people's data, so that ingest and every index check
	// their signatures themselves.
	Decides bool
	// Vouches: an accepted event makes others acceptable, which it names or which name it.
	Vouches bool
	// Unlinked: its events are accepted for what they are, and not for what they name.
	Unlinked bool
	// FromAnyone: its events are accepted from everybody, without a rule of their own.
	FromAnyone bool
	// OwnOnly: its events are taken from the service's own key only (NIP-C1).
	OwnOnly bool
	// Waits: its events wait for their git data.
	Waits bool
	// Root: comments refer to it; its id is asked for at the relays of its repository.
	Root bool
	// Announced: it is asked for without tags, of anybody (layer 1).
	Announced bool
	// Counted: metrics have a label for it. The others are one label, so that strangers cannot
	// multiply it.
	Counted bool
}

// Bounds of events in bytes. A state may have what fits the front door's largest message, some
// 5,000 references with names as clients write them; a pull request the longest description that
// other forges allow, 64 Ki characters, in any script.
const (
	maxAnnouncement = 64 << 10
	maxState        = 512 << 10
	maxPatch        = 512 << 10
	maxPR           = 256 << 10
	maxGraspList    = 16 << 10
	maxAboutAuthor  = 32 << 10
)

// Kinds are those that a git relay knows by number. Requests, reports and user grasp lists do not
// vouch: they are accepted from anyone, so that anyone could bring in anything by them.
var Kinds = []Kind{
	{Number: KindProfile, Name: "profile", MaxBytes: maxAboutAuthor, Counted: true},
	{Number: 1, Vouches: true, Counted: true},
	{Number: KindDeletion, Name: "deletion request", Decides: true, Unlinked: true, Counted: true},
	{Number: 6, Vouches: true, Counted: true},
	{Number: 7, Vouches: true, Counted: true},
	{Number: KindVanish, Name: "request to vanish", Decides: true, Unlinked: true, Counted: true},
	{Number: KindComment, Name: "comment", Vouches: true, Counted: true},
	{Number: KindPatch, Name: "patch", MaxBytes: maxPatch, Vouches: true, Root: true, Counted: true},
	{Number: KindPR, Name: "pull request", MaxBytes: maxPR, Decides: true, Vouches: true, Waits: true, Root: true,
		Counted: true},
	{Number: KindPRUpdate, Name: "update of a pull request", MaxBytes: maxPR, Decides: true, Vouches: true, Waits: true,
		Counted: true},
	{Number: KindIssue, Name: "issue", Vouches: true, Root: true, Counted: true},
	{Number: KindStatusOpen, Vouches: true, Counted: true},
	{Number: KindStatusApplied, Vouches: true, Counted: true},
	{Number: KindStatusClosed, Vouches: true, Counted: true},
	{Number: KindStatusDraft, Vouches: true, Counted: true},
	{Number: KindReport, Name: "report", Unlinked: true},
	{Number: 9734, Vouches: true, Counted: true},
	{Number: 9735, Vouches: true, Counted: true},
	{Number: KindRelayList, Name: "relay list", MaxBytes: maxAboutAuthor, Counted: true},
	{Number: KindUserGraspList, Name: "user grasp list", MaxBytes: maxGraspList, Unlinked: true, FromAnyone: true,
		Announced: true, Counted: true},
	{Number: KindUserGraspSet, Name: "user grasp list", MaxBytes: maxGraspList, Unlinked: true, FromAnyone: true,
		Counted: true},
	{Number: 19843, Vouches: true, OwnOnly: true},
	{
		Number: KindAnnouncement, Name: "announcement", MaxBytes: maxAnnouncement,
		Decides: true, Vouches: true, Unlinked: true, Waits: true, Announced: true, Counted: true,
	},
	{
		Number: KindState, Name: "state", MaxBytes: maxState,
		Decides: true, Vouches: true, Unlinked: true, Waits: true, Counted: true,
	},
}

var kindsByNumber = func() map[int]Kind {
	by := map[int]Kind{}
	for _, k := range Kinds {
		by[k.Number] = k
	}
	return by
}()

// KindOf is what is known of a kind. One that is not in the table has no bound of its own, comes in
// by its references, and vouches for others.
func KindOf(kind int) Kind {
	if k, known := kindsByNumber[kind]; known {
		return k
	}
	return Kind{Number: kind, Vouches: true}
}

// KindsThat are the numbers of the kinds of the table for which is holds.
func KindsThat(is func(Kind) bool) (numbers []int) {
	for _, k := range Kinds {
		if is(k) {
			numbers = append(numbers, k.Number)
		}
	}
	return numbers
}

// IsHex64 reports whether s is 64 lower-case hex digits: an event id or a public key (NIP-01).
func IsHex64(s string) bool {
	var b [32]byte
	return ReadHex(b[:], s)
}

// IsObjectID reports whether s names a git object: 40 (SHA-1) or 64 (SHA-256) lower-case hex
// digits, not all of them zero, which is how git writes "no object".
func IsObjectID(s string) bool {
	var b [20]byte
	return (IsHex64(s) || ReadHex(b[:], s)) && strings.Trim(s, "0") != ""
}

// tagValues gathers every value of every tag of that name, in order. Empty values are left out.
func tagValues(tags Tags, name string, most int) ([]string, error) {
	var values []string
	for tag := range tags.FindAll(name) {
		for _, v := range tag[1:] {
			if v == "" {
				continue
			}
			if len(values) == most {
				return nil, fmt.Errorf("more than %d values in %q tags", most, name)
			}
			values = append(values, v)
		}
	}
	return values, nil
}

// tagValue is the first value of the first tag of that name, or "".
func tagValue(tags Tags, name string) string {
	if tag := tags.Find(name); tag != nil {
		return tag[1]
	}
	return ""
}

// fewItems are found by comparing one by one.
const fewItems = 8

// distinct collects values in the order of their first appearance.
type distinct[T comparable] struct {
	items []T
	later map[T]bool // those behind the first few
}

func (d *distinct[T]) add(v T) {
	if d.later[v] || slices.Contains(d.items[:min(len(d.items), fewItems)], v) {
		return
	}
	if d.items = append(d.items, v); len(d.items) > fewItems {
		if d.later == nil {
			d.later = map[T]bool{}
		}
		d.later[v] = true
	}
}
