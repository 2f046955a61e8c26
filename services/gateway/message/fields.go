package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"tendril.dev/lib/nostr"
)

// MaxEventTags is the most tags of an event. A state event that names as many references as a
// message can hold stays below it.
const MaxEventTags = 10_000

const maxKind = 65535

// errForm: the JSON is not of the type that the field has.
var errForm = errors.New("not of the right type")

// parseEvent reads an event. Fields that NIP-01 does not know are left out, because they are not
// part of what was signed.
func parseEvent(raw json.RawMessage) (*nostr.Event, *Error) {
	fields := map[string]json.RawMessage{}
	twice, err := object(raw, func(name string, value json.RawMessage) bool {
		if _, ok := fields[name]; ok {
			return false
		}
		switch name {
		case "id", "pubkey", "created_at", "kind", "tags", "content", "sig":
			fields[name] = value
		}
		return true
	})
	if err != nil {
		return nil, refuse("an event must be a JSON object")
	}
	ev := new(nostr.Event)
	if ev.ID, err = text(fields["id"]); err != nil || !nostr.IsHex64(ev.ID) {
		return nil, refuse("an event's id must be 64 lower-case hex digits")
	}
	on := func(e *Error) (*nostr.Event, *Error) {
		e.EventID = ev.ID
		return nil, e
	}
	if twice != "" {
		return on(refuse("the event's %q stands twice", twice))
	}
	if ev.PubKey, err = text(fields["pubkey"]); err != nil || !nostr.IsHex64(ev.PubKey) {
		return on(refuse("an event's pubkey must be 64 lower-case hex digits"))
	}
	if ev.Sig, err = text(fields["sig"]); err != nil || len(ev.Sig) != 128 || !nostr.IsHex64(ev.Sig[:64]) || !nostr.IsHex64(ev.Sig[64:]) {
		return on(refuse("an event's sig must be 128 lower-case hex digits"))
	}
	created, err := integer(fields["created_at"])
	if err != nil || created < 0 {
		return on(refuse("an event's created_at must be a time in seconds"))
	}
	kind, err := integer(fields["kind"])
	if err != nil || kind < 0 || kind > maxKind {
		return on(refuse("an event's kind must be a number from 0 to %d", maxKind))
	}
	ev.CreatedAt, ev.Kind = nostr.Timestamp(created), int(kind)
	if ev.Content, err = text(fields["content"]); err != nil {
		return on(refuse("an event's content must be a string"))
	}
	var refused *Error
	if ev.Tags, refused = parseTags(fields["tags"]); refused != nil {
		return on(refused)
	}
	return ev, nil
}

func parseTags(raw json.RawMessage) (nostr.Tags, *Error) {
	var given [][]*string
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &given) != nil {
		return nil, refuse("an event's tags must be a list of lists of strings")
	}
	if len(given) > MaxEventTags {
		return nil, refuse("an event has at most %d tags", MaxEventTags)
	}
	tags := make(nostr.Tags, 0, len(given))
	for _, values := range given {
		if len(values) == 0 {
			return nil, refuse("a tag of an event must not be empty")
		}
		tag := make(nostr.Tag, 0, len(values))
		for _, value := range values {
			if value == nil {
				return nil, refuse("an event's tags must be a list of lists of strings")
			}
			tag = append(tag, *value)
		}
		tags = append(tags, tag)
	}
	return tags, nil
}

// parseFilter reads a filter and settles its limit.
func (l Limits) parseFilter(raw json.RawMessage) (nostr.Filter, *Error) {
	r, refused := l.readFilter(raw)
	switch {
	case refused != nil:
		return nostr.Filter{}, refused
	case r.limit == 0:
		r.filter.LimitZero = true
	case r.limit > 0:
		r.filter.Limit = int(min(r.limit, int64(l.MaxLimit)))
	default:
		// Who names ids means all of them.
		r.filter.Limit = min(max(l.DefaultLimit, len(r.filter.IDs)), l.MaxLimit)
	}
	return r.filter, nil
}

// readFilter reads a filter. A condition that is not known is refused, because to overlook it would
// answer another question.
func (l Limits) readFilter(raw json.RawMessage) (filterReader, *Error) {
	r := filterReader{limit: -1}
	seen := map[string]bool{}
	twice, err := object(raw, func(name string, value json.RawMessage) bool {
		if seen[name] {
			return false
		}
		seen[name] = true
		if r.refused == nil {
			r.refused = r.field(name, value)
		}
		return true
	})
	switch {
	case err != nil:
		return r, refuse("a filter must be a JSON object")
	case twice != "":
		return r, refuse("%s stands twice in a filter", clip(twice))
	case r.refused != nil:
		return r, r.refused
	case r.values > l.Values:
		return r, refuse("%d values in a filter, at most %d are taken", r.values, l.Values)
	}
	return r, nil
}

type filterReader struct {
	filter  nostr.Filter
	limit   int64 // -1: not given
	values  int
	refused *Error
}

func (r *filterReader) field(name string, value json.RawMessage) (refused *Error) {
	switch {
	case name == "ids":
		r.filter.IDs, refused = r.keys(name, value)
	case name == "authors":
		r.filter.Authors, refused = r.keys(name, value)
	case name == "kinds":
		r.filter.Kinds, refused = r.kinds(value)
	case name == "since":
		r.filter.Since, refused = timestamp(name, value)
	case name == "until":
		r.filter.Until, refused = timestamp(name, value)
	case name == "limit":
		n, err := integer(value)
		if err != nil || n < 0 {
			return refuse("limit must be a number of events")
		}
		r.limit = n
	case name == "search":
		return &Error{Text: "unsupported: search (NIP-50) is not supported here"}
	case len(name) == 2 && name[0] == '#' && isLetter(name[1]):
		values, err := texts(value)
		if err != nil {
			return refuse("%s must be a list of strings", name)
		}
		r.values += len(values)
		if r.filter.Tags == nil {
			r.filter.Tags = nostr.TagMap{}
		}
		r.filter.Tags[name[1:]] = values
	default:
		return &Error{Text: "unsupported: filters with " + clip(name) + " are not supported here"}
	}
	return refused
}

// keys reads a list of ids or public keys.
func (r *filterReader) keys(name string, raw json.RawMessage) ([]string, *Error) {
	values, err := texts(raw)
	if err != nil {
		return nil, refuse("%s must be a list of strings", name)
	}
	for _, v := range values {
		if !nostr.IsHex64(v) {
			return nil, refuse("%s must be 64 lower-case hex digits each", name)
		}
	}
	r.values += len(values)
	return values, nil
}

func (r *filterReader) kinds(raw json.RawMessage) ([]int, *Error) {
	if raw[0] != '[' {
		return nil, refuse("kinds must be a list of numbers")
	}
	kinds := []int{}
	for g := range inside(raw) {
		k, err := integer(g)
		if err != nil || k < 0 || k > maxKind {
			return nil, refuse("kinds must be numbers from 0 to %d", maxKind)
		}
		kinds = append(kinds, int(k))
	}
	r.values += len(kinds)
	return kinds, nil
}

func timestamp(name string, raw json.RawMessage) (*nostr.Timestamp, *Error) {
	n, err := integer(raw)
	if err != nil || n < 0 {
		return nil, refuse("%s must be a time in seconds", name)
	}
	t := nostr.Timestamp(n)
	return &t, nil
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// object gives every field to fn, names as they are written: encoding/json alone would take "ID"
// for "id". twice is the first name that fn did not want again.
func object(raw json.RawMessage, fn func(name string, value json.RawMessage) bool) (twice string, err error) {
	if len(raw) == 0 || raw[0] != '{' {
		return "", errForm
	}
	var name json.RawMessage
	for part := range inside(raw) {
		if name == nil {
			name = part
			continue
		}
		field, err := text(name)
		if err != nil {
			return "", err
		}
		if !fn(field, part) && twice == "" {
			twice = field
		}
		name = nil
	}
	return twice, nil
}

// The readers below take JSON whose syntax has been checked, and nothing but the type that they are
// for: no null, no other type.

func text(raw json.RawMessage) (string, error) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", errForm
	}
	if inner := raw[1 : len(raw)-1]; plain(inner) {
		return string(inner), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", errForm
	}
	return s, nil
}

// plain: the characters of a string literal stand for themselves.
func plain(b []byte) bool {
	return bytes.IndexByte(b, '\\') < 0
}

func texts(raw json.RawMessage) ([]string, error) {
	if raw[0] != '[' {
		return nil, errForm
	}
	values := []string{}
	for g := range inside(raw) {
		s, err := text(g)
		if err != nil {
			return nil, err
		}
		values = append(values, s)
	}
	return values, nil
}

func integer(raw json.RawMessage) (int64, error) {
	if len(raw) == 0 {
		return 0, errForm
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, errForm
	}
	return n, nil
}
