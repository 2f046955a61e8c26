package bus_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

// guarded starts a NATS server with logins in a folder.
func guarded(t *testing.T) (*nettest.NATS, string) {
	t.Helper()
	dir := t.TempDir()
	must(t, logins.Init(dir))
	return nettest.NewNATS(t, filepath.Join(dir, logins.UsersFile)), dir
}

// TestRefusedLoginIsOneSentence: it names the setting, the file and the user, and no password.
func TestRefusedLoginIsOneSentence(t *testing.T) {
	t.Parallel()
	srv, dir := guarded(t)
	wrong := filepath.Join(dir, "wrong.login")
	setting := `NGIT_NATS_LOGIN_FILE is "` + wrong + `": `
	for text, want := range map[string]string{
		"":                  "no such file or directory; want a file with one line, user:password",
		"gateway\n":         "read " + wrong + ": want one line, user:password",
		"gateway:hunter2\n": "NATS " + srv.URL + " refused user gateway: nats: Authorization Violation",
	} {
		os.Remove(wrong)
		if text != "" {
			must(t, os.WriteFile(wrong, []byte(text), 0o600))
		}
		_, err := bus.Open(t.Context(), bus.Options{URL: srv.URL, LoginFile: wrong, Sizing: proto.DefaultSizing()})
		if err == nil || err.Error() != setting+want {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
	_, err := bus.Open(t.Context(), bus.Options{URL: srv.URL, Sizing: proto.DefaultSizing()})
	if want := "NGIT_NATS_LOGIN_FILE is not set: NATS " + srv.URL + " wants another login: nats: Authorization Violation"; err == nil || err.Error() != want {
		t.Errorf("without a login: %v", err)
	}
}

// TestLoginThatComesTooEarly: a new password reaches the process long before the server knows it,
// and the connection breaks meanwhile. The process tries until it is let in. What its user may not
// do is counted each time.
func TestLoginThatComesTooEarly(t *testing.T) {
	t.Parallel()
	srv, dir := guarded(t)
	b := open(t, bus.Options{URL: srv.URL, Provisions: true, LoginFile: logins.LoginFile(dir, proto.UserIngest)})
	must(t, logins.Rotate(dir), b.Conn.ForceReconnect())
	fixture.Await(t, "it tries more often than nats.go by itself would", func() bool { return srv.Unknown() > 4 })
	srv.Reload()
	fixture.Await(t, "the new login is taken", func() bool { return srv.Connections("ingest-2") == 1 })
	must(t, logins.Retire(dir))
	srv.Reload()
	if _, err := bus.LastSeq(t.Context(), b.JS, proto.StreamEvents); err != nil || srv.Connections("ingest-2") != 1 || b.Refused() != 0 {
		t.Errorf("after the old password was retired: %v; refused %q", err, srv.Refused())
	}
	for range 3 {
		must(t, b.Conn.Publish("grasp.candidate.user", nil))
	}
	_, err := b.Conn.SubscribeSync("grasp.git.>")
	must(t, err)
	fixture.Await(t, "all are counted", func() bool { return b.Refused() == 4 })
}

// TestEmbeddedWithPassword: operators and `tendril import` need it; this process needs none and may
// do everything; no other user is let in.
func TestEmbeddedWithPassword(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Password: "hunter2"})
	_, err := b.PublishBatch(t.Context(), []*nats.Msg{event("a")}, nil)
	must(t, err)
	for login, lane := range map[string]proto.Lane{ // and where it may publish
		" ": "", "operator hunter3": "", "tendril hunter2": "", "ingest hunter2": "", "operator hunter2": "none", "import hunter2": proto.LaneImport,
	} {
		user, password, _ := strings.Cut(login, " ")
		other, err := bus.Look(bus.Options{URL: b.ClientURL(), Password: password, Role: user}, fixture.Patience)
		if lane == "" {
			if !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("%s: %v", login, err)
			}
			continue
		}
		must(t, err)
		defer other.Close()
		if _, err := other.JS.Publish(t.Context(), proto.LaneImport.Subject(), []byte("{}")); (err == nil) != (lane == proto.LaneImport) {
			t.Errorf("%s offers an event: %v", login, err)
		}
	}
}

// TestTLS: the server's certificate must be signed by NGIT_NATS_CA, and ours is shown to a server
// that wants one.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir, "server")
	other, _ := certificate(t, dir, "other")
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: cert, Verify: true})
	must(t, err)
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		TLSTimeout: 60, TLS: true, TLSVerify: true, TLSConfig: config,
	})
	must(t, err)
	go srv.Start()
	t.Cleanup(srv.WaitForShutdown)
	t.Cleanup(srv.Shutdown)
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("NATS is not ready")
	}
	url := "tls://" + strings.TrimPrefix(srv.Addr().String(), "nats://")
	open(t, bus.Options{URL: url, Provisions: true, CA: cert, Cert: cert, Key: key})
	_, err = bus.Open(t.Context(), bus.Options{URL: url, CA: other, Cert: cert, Key: key, Sizing: proto.DefaultSizing()})
	if err == nil || !strings.HasPrefix(err.Error(), `NGIT_NATS_CA is "`+other+`": the certificate of NATS `+url+` is not signed by any certificate in this file: `) {
		t.Errorf("with a wrong CA: %v", err)
	}
	if _, err := bus.Open(t.Context(), bus.Options{URL: url, CA: cert, Sizing: proto.DefaultSizing()}); err == nil {
		t.Error("connected without a certificate of our own")
	}
}

// certificate writes a certificate for 127.0.0.1 that is signed by itself, and its key.
func certificate(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(path+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return path + ".pem", path + ".key"
}
