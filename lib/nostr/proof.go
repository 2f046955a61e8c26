package nostr

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	gonostr "github.com/nbd-wtf/go-nostr"
)

// NewProof makes what shows a private service that who signs may read what is at an address (GRASP-08
// with NIP-98), as base64. It is good for a minute.
func NewProof(address string, sign func(*Event) error) (string, error) {
	root, err := proofRoot(address)
	if err != nil {
		return "", err
	}
	ev := Event{Kind: gonostr.KindHTTPAuth, CreatedAt: Now(), Tags: Tags{{"u", root}, {"method", http.MethodGet}}}
	if err := sign(&ev); err != nil {
		return "", fmt.Errorf("sign a proof: %w", err)
	}
	data, err := ev.MarshalJSON()
	return base64.StdEncoding.EncodeToString(data), err
}

// proofRoot is the address that the proof for an address names: that of the repository, up to ".git",
// as it is written, or the root of the service.
func proofRoot(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return "", fmt.Errorf("%.200q is no address of a service: want https://…/npub1…/….git", address)
	}
	origin := u.Scheme + "://" + strings.ToLower(u.Host)
	_, rest, _ := strings.Cut(address, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, path, _ := strings.Cut(rest, "/")
	base, repository, found := strings.Cut("/"+path, "/npub1")
	owner, rest, _ := strings.Cut(repository, "/")
	name, _, _ := strings.Cut(rest, "/")
	if found && strings.HasSuffix(name, ".git") {
		return origin + base + "/npub1" + owner + "/" + name, nil
	}
	return origin + strings.TrimRight(base, "/") + "/", nil
}
