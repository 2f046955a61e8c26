package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip86"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// order is a request of the operator's client that was signed by the operator.
type order struct {
	*node.Node
	params []any
	by     string // npub of the operator
	now    time.Time
}

// text is a parameter that is a string; empty: there is none.
func (o order) text(n int) string {
	if n >= len(o.params) {
		return ""
	}
	text, _ := o.params[n].(string)
	return text
}

// method is one that a client may call.
type method struct {
	name string
	do   func(context.Context, order) (any, error)
}

// subjectOf reads the first parameter.
type subjectOf func(order) (bans.Subject, error)

// methods are all that answer, in the order in which they are listed.
func methods() []method {
	info := func(what string) func(context.Context, order) (any, error) {
		return func(ctx context.Context, o order) (any, error) { return o.change(ctx, what) }
	}
	return []method{
		{"banpubkey", ban(pubkey)}, {"unbanpubkey", lift(pubkey)}, {"listbannedpubkeys", banned(pubkeyReason)},
		{"allowpubkey", allow(pubkey)}, {"unallowpubkey", unallow(pubkey)}, {"listallowedpubkeys", allowed(pubkeyReason)},
		{"banevent", ban(event)}, {"unbanevent", lift(event)}, {"listbannedevents", banned(eventReason)},
		{"allowevent", allow(event)}, {"unallowevent", unallow(event)}, {"listallowedevents", allowed(eventReason)},
		{"listeventsneedingmoderation", needingModeration},
		{"disallowkind", ban(kind)}, {"allowkind", allow(kind)},
		{"listdisallowedkinds", banned(kindNumber)}, {"listallowedkinds", allowed(kindNumber)},
		{"blockip", ban(address)}, {"unblockip", lift(address)}, {"listblockedips", banned(addressReason)},
		{"banrelay", ban(relay)}, {"unbanrelay", lift(relay)}, {"listbannedrelays", banned(relayReason)},
		{"bangithost", ban(gitHost)}, {"unbangithost", lift(gitHost)}, {"listbannedgithosts", banned(gitHostReason)},
		{"changerelayname", info("name")}, {"changerelaydescription", info("description")}, {"changerelayicon", info("icon")},
	}
}

// do carries an order out.
func (m *management) do(ctx context.Context, o order, name string) (result any, err error) {
	names := []string{"supportedmethods"}
	for _, one := range methods() {
		if one.name == name {
			return one.do(ctx, o)
		}
		names = append(names, one.name)
	}
	if name == names[0] {
		return names, nil
	}
	return nil, fmt.Errorf("method %q is not supported; supportedmethods lists those that are", name)
}

// ban bans a subject, with the reason that is the second parameter. Who is banned is not on the
// list of the allowed.
func ban(of subjectOf) func(context.Context, order) (any, error) {
	return func(ctx context.Context, o order) (any, error) {
		subject, err := of(o)
		if err == nil && o.Bans.IsAllowed(subject) {
			err = bans.Disallow(ctx, o.Bus.JS, subject, o.by)
		}
		if err != nil {
			return nil, err
		}
		return true, bans.Put(ctx, o.Bus.JS, subject, proto.Ban{Reason: o.text(1), By: o.by, At: o.now.UTC()})
	}
}

// lift ends a ban.
func lift(of subjectOf) func(context.Context, order) (any, error) {
	return func(ctx context.Context, o order) (any, error) {
		subject, err := of(o)
		if err != nil {
			return nil, err
		}
		return true, bans.Lift(ctx, o.Bus.JS, subject, o.by)
	}
}

// allow lifts the ban of a subject, and notes that the operator finds it welcome: reports about it
// do not need moderation any more.
func allow(of subjectOf) func(context.Context, order) (any, error) {
	return func(ctx context.Context, o order) (any, error) {
		subject, err := of(o)
		if err == nil {
			err = bans.Lift(ctx, o.Bus.JS, subject, o.by)
		}
		if err != nil {
			return nil, err
		}
		return true, bans.Allow(ctx, o.Bus.JS, subject, proto.Ban{Reason: o.text(1), By: o.by, At: o.now.UTC()})
	}
}

// unallow ends what allow has noted, and bans no key.
func unallow(of subjectOf) func(context.Context, order) (any, error) {
	return func(ctx context.Context, o order) (any, error) {
		subject, err := of(o)
		if err != nil {
			return nil, err
		}
		return true, bans.Disallow(ctx, o.Bus.JS, subject, o.by)
	}
}

// banned lists the bans of which entry makes something, and allowed what is welcome.
func banned(entry func(*bans.Ban) any) func(context.Context, order) (any, error) {
	return func(_ context.Context, o order) (any, error) {
		listed := []any{}
		for b := range o.Bans.All() {
			if e := entry(b); e != nil {
				listed = append(listed, e)
			}
		}
		return listed, nil
	}
}

func allowed(entry func(*bans.Ban) any) func(context.Context, order) (any, error) {
	return func(_ context.Context, o order) (any, error) {
		listed := []any{}
		for b := range o.Bans.Allowed() {
			if e := entry(b); e != nil {
				listed = append(listed, e)
			}
		}
		return listed, nil
	}
}

var errNoHex = errors.New("the first parameter is not 64 lower-case hex digits")

func pubkey(o order) (bans.Subject, error) {
	if !nostr.IsHex64(o.text(0)) {
		return bans.Subject{}, errNoHex
	}
	return bans.Subject{PubKey: o.text(0)}, nil
}

func event(o order) (bans.Subject, error) {
	if !nostr.IsHex64(o.text(0)) {
		return bans.Subject{}, errNoHex
	}
	return bans.Subject{Event: o.text(0)}, nil
}

func kind(o order) (bans.Subject, error) {
	if len(o.params) > 0 {
		if number, is := o.params[0].(float64); is && number == float64(int(number)) {
			return bans.OfKind(int(number))
		}
	}
	return bans.Subject{}, errors.New("the first parameter is no kind of events; want a number from 0 to 65535")
}

func address(o order) (bans.Subject, error) { return bans.OfAddress(o.text(0)) }
func relay(o order) (bans.Subject, error)   { return bans.OfRelay(o.text(0)) }
func gitHost(o order) (bans.Subject, error) { return bans.OfGitHost(o.text(0)) }

func pubkeyReason(b *bans.Ban) any {
	if b.Kind() != "author" {
		return nil
	}
	return nip86.PubKeyReason{PubKey: b.PubKey, Reason: b.Reason}
}

func eventReason(b *bans.Ban) any {
	if b.Kind() != "event" {
		return nil
	}
	return nip86.IDReason{ID: b.Event, Reason: b.Reason}
}

func kindNumber(b *bans.Ban) any {
	number, err := strconv.Atoi(b.Outside.EventKind)
	if err != nil {
		return nil
	}
	return number
}

func addressReason(b *bans.Ban) any { return named("ip", b.Outside.Address, b.Reason) }
func gitHostReason(b *bans.Ban) any { return named("host", b.Outside.GitHost, b.Reason) }

func relayReason(b *bans.Ban) any {
	if b.Outside.Relay == "" {
		return nil
	}
	return named("url", b.String(), b.Reason)
}

// named is an entry of a list; nil: the ban is none of that list.
func named(what, name, reason string) any {
	if name == "" {
		return nil
	}
	return map[string]string{what: name, "reason": reason}
}

// needingModeration lists the events here that were reported, each once, unless the operator has
// banned or allowed them or their authors.
func needingModeration(ctx context.Context, o order) (any, error) {
	view := o.Index.View()
	defer view.Close()
	reasons, ids := map[string]string{}, []string{}
	reports := nostr.Filter{Kinds: []int{nostr.KindReport}, Limit: mostReports}
	for report, err := range view.Query(ctx, reports) {
		if err != nil {
			return nil, fmt.Errorf("read reports: %w", err)
		}
		for tag := range report.Tags.FindAll("e") {
			if id := tag[1]; nostr.IsHex64(id) && reasons[id] == "" && len(ids) < mostReports {
				reasons[id] = reasonOf(tag, report.Content)
				ids = append(ids, id)
			}
		}
	}
	here := map[string]bool{}
	if len(ids) > 0 {
		for ev, err := range view.Query(ctx, nostr.Filter{IDs: ids}) {
			if err != nil {
				return nil, fmt.Errorf("read reported events: %w", err)
			}
			here[ev.ID] = !o.Bans.IsAllowed(bans.Subject{Event: ev.ID}) && !o.Bans.IsAllowed(bans.Subject{PubKey: ev.PubKey})
		}
	}
	listed := []nip86.IDReason{}
	for _, id := range ids {
		if here[id] {
			listed = append(listed, nip86.IDReason{ID: id, Reason: reasons[id]})
		}
	}
	return listed, nil
}

// reasonOf is why an event was reported, in a line: the type that NIP-56 puts behind the id, and
// the text.
func reasonOf(tag nostr.Tag, text string) string {
	const most = 200
	kind := "reported"
	if len(tag) > 2 && tag[2] != "" {
		kind = tag[2]
	}
	line := strings.Join(strings.Fields(kind+": "+text), " ")
	return strings.ToValidUTF8(strings.TrimSuffix(line[:min(len(line), most)], ":"), "")
}

// change changes what the relay says of itself.
func (o order) change(ctx context.Context, what string) (any, error) {
	text := o.text(0)
	u, err := url.Parse(text)
	isURL := err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
	if len(text) > maxChanged || what == "icon" && !isURL && text != "" {
		return nil, errors.New("the first parameter is too long, or not a URL")
	}
	return true, bans.PutInfo(ctx, o.Bus.JS, what, text, o.by)
}
