package wire_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/relayconn/wire"
)

func TestParseDocument(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]wire.Document{
		`{}`: {},
		`{"name":"strfry default","supported_nips":[1,2,77],"limitation":{"max_limit":500,"max_message_length":131072,"max_subscriptions":20}}`: {
			Limits: wire.Stated{Subscriptions: 20, Events: 500, Bytes: 131072}, NIPs: []int{1, 2, 77},
		},
		`{"limitation":{"max_filters":10,"max_subscriptions":2.5,"max_limit":-1,"max_message_length":"many"}}`: {Limits: wire.Stated{Filters: 10}},
		`{"limitation":{"max_filters":null,"max_subscriptions":1e99,"max_limit":0}}`:                           {},
		`{"limitation":[1,2],"supported_nips":"all"}`:                                                          {},
		`{"supported_nips":[1,"2",[3],null,4]}`:                                                                {NIPs: []int{1, 4}},
	} {
		if got, err := wire.ParseDocument([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "<html>", `["a"]`, `{"limitation":`} {
		if got, err := wire.ParseDocument([]byte(text)); err == nil || !reflect.DeepEqual(got, wire.Document{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestFetch asks as NIP-11 says, and takes neither endless documents nor what is no document.
func TestFetchDocument(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			if r.Header.Get("Accept") != "application/nostr+json" {
				t.Errorf("Accept: %q", r.Header.Get("Accept"))
			}
			fmt.Fprint(w, `{"limitation":{"max_subscriptions":7}}`)
		case "/endless":
			fmt.Fprint(w, `{"name":"`)
			for range 1000 {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	client := netguard.New(netguard.Options{AllowPrivate: true}).HTTPClient()
	url := "ws" + strings.TrimPrefix(server.URL, "http")
	if d, err := wire.FetchDocument(t.Context(), client, url+"/good"); err != nil || d.Limits.Subscriptions != 7 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, bad := range []string{url + "/endless", url + "/none", server.URL + "/good", "ws://127.0.0.1:1/", "ws://[", ""} {
		if d, err := wire.FetchDocument(t.Context(), client, bad); err == nil {
			t.Errorf("%s: %+v", bad, d)
		}
	}
	guarded := netguard.New(netguard.Options{}).HTTPClient()
	if _, err := wire.FetchDocument(t.Context(), guarded, url+"/good"); err == nil {
		t.Error("a private address is asked")
	}
}

func FuzzParseDocument(f *testing.F) {
	f.Add([]byte(`{"supported_nips":[1,77],"limitation":{"max_limit":500,"max_subscriptions":20}}`))
	f.Add([]byte(`{"limitation":{"max_limit":1e400}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := wire.ParseDocument(data)
		if l := d.Limits; l.Subscriptions < 0 || l.Events < 0 || l.Filters < 0 || l.Bytes < 0 || len(d.NIPs) > 1000 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}
