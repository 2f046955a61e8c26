package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/nbd-wtf/go-nostr/nip86"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// authWindow is how far the time of an authorisation may be from ours, either way (NIP-98).
	authWindow = time.Minute
	// maxAuth bounds an authorisation, in bytes, and maxChanged what an operator's client says of the
	// relay.
	maxAuth    = 8 << 10
	maxChanged = 2 << 10
	// mostReports bounds how many reports are looked at, the newest first.
	mostReports = 1000
)

// management does what the operator's client asks for (NIP-86). The gateway passes the requests on,
// and ingest checks each itself.
type management struct{ *node.Node }

// manage answers a request.
func (m *management) manage(ctx context.Context, q proto.ManageRequest, send func(any) error) error {
	status, response, now := http.StatusOK, nip86.Response{}, time.Now()
	by, err := m.authorise(ctx, q, now)
	if err != nil {
		status = http.StatusUnauthorized
	} else {
		var r nip86.Request
		if err = json.Unmarshal(q.Body, &r); err == nil {
			response.Result, err = m.do(ctx, order{m.Node, r.Params, by, now}, r.Method)
		}
		m.Log.Info("the operator's client has managed the relay", "method", r.Method, "params", r.Params, "by", by,
			"error", err)
	}
	if err != nil {
		response.Error = err.Error()
	}
	body, _ := json.Marshal(response) // strings and lists of them
	return send(proto.ManageAnswer{Status: status, Body: body})
}

// authorise returns the npub of the operator, who has signed the request (NIP-98). An authorisation
// is good for one request.
func (m *management) authorise(ctx context.Context, q proto.ManageRequest, now time.Time) (npub string, err error) {
	key, err := m.Settings.FindKey(".")
	if err != nil {
		return "", errors.New("this service does not know the operator's key: set NGIT_RELAY_OWNER_NSEC for ingest")
	}
	encoded, ok := strings.CutPrefix(q.Authorization, "Nostr ")
	data, wrong := base64.StdEncoding.DecodeString(encoded)
	ev := new(nostr.Event)
	if !ok || wrong != nil || len(data) > maxAuth || ev.UnmarshalJSON(data) != nil {
		return "", errors.New("the header Authorization holds no event (NIP-98)")
	}
	tag := func(name string) string {
		if t := ev.Tags.Find(name); len(t) > 1 {
			return t[1]
		}
		return ""
	}
	payload := sha256.Sum256(q.Body)
	switch {
	case ev.Kind != gonostr.KindHTTPAuth:
		return "", fmt.Errorf("the event is not of kind %d", gonostr.KindHTTPAuth)
	case ev.CreatedAt.Time().Sub(now).Abs() > authWindow:
		return "", fmt.Errorf("created_at is more than %s from now", authWindow)
	case !m.isOurs(tag("u")):
		return "", fmt.Errorf("the tag u does not name this relay, https://%s", m.Settings.Address())
	case !strings.EqualFold(tag("method"), http.MethodPost):
		return "", errors.New("the tag method is not POST")
	case tag("payload") != hex.EncodeToString(payload[:]):
		return "", errors.New("the tag payload is not the SHA-256 of the request")
	case ev.PubKey != key.Public:
		return "", errors.New("the event is not signed by the operator of this relay")
	case !nostr.HasID(ev) || !nostr.Signed(ev):
		return "", errors.New("the id or the signature does not fit the event")
	}
	if err := bans.Use(ctx, m.Bus.JS, ev.ID, 2*authWindow+time.Second); bus.IsConflict(err) {
		return "", errors.New("the event was used before")
	} else if err != nil {
		return "", err
	}
	return nip19.EncodePublicKey(key.Public)
}

// isOurs reports whether an address is the relay's: its scheme makes no difference.
func (m *management) isOurs(address string) bool {
	u, err := url.Parse(address)
	return err == nil && strings.Trim(u.Path, "/") == strings.Trim(m.Settings.BasePath, "/") && u.RawQuery == "" &&
		nostr.OnDomain(address, m.Settings.Domain)
}
