package nostr

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds of NIP-34, and the ones next to them that a git relay knows by number (NIP-22 comment,
// NIP-09 deletion, NIP-56 report).
const (
	KindPatch, KindPR, KindPRUpdate, KindIssue     = 1617, 1618, 1619, 1621
	KindAnnouncement, KindState, KindUserGraspList = 30617, 30618, 10317
	KindComment, KindDeletion, KindReport          = 1111, 5, 1984
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

// Decides reports whether events of a kind decide about other people's data, so that ingest and every
// index check their signatures themselves.
func Decides(kind int) bool {
	return slices.Contains([]int{KindDeletion, KindAnnouncement, KindState, KindPR, KindPRUpdate}, kind)
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
