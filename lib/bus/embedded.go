package bus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"tendril.dev/lib/disk"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// insideUser is this process at an embedded server that has users.
const insideUser = proto.UserTendril

// startEmbedded starts the embedded server in its folder, which is one to be thrown away if none is
// given. JetStream syncs every write: durable before done (docs/architecture.md, Six ideas).
func (b *Bus) startEmbedded(o Options) error {
	if o.Dir == "" {
		temp, err := os.MkdirTemp("", "tendril-bus-")
		if err != nil {
			return fmt.Errorf("make a folder for the embedded NATS: %w", err)
		}
		o.Dir, b.temporary = temp, temp
	} else if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the embedded NATS: %w", err)
	}
	opts, err := b.serverUsers(o.Password)
	if err != nil {
		return err
	}
	opts.ServerName, opts.StoreDir, opts.MaxPayload = "tendril", o.Dir, 1<<20
	// Not NATS's own default, a share of what is free when it starts: with little room left the
	// streams that are there would not fit any more.
	_, all, err := disk.Free(o.Dir)
	if err != nil {
		return fmt.Errorf("start the embedded NATS: %w", err)
	}
	opts.JetStreamMaxStore = storeLimit(all)
	opts.JetStream, opts.SyncAlways, opts.DontListen, opts.NoSigs = true, true, true, true
	if o.Listen != "" && o.Listen != "none" {
		// The server itself would try for a while and then end the process; a look beforehand gives
		// a sentence instead.
		l, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return fmt.Errorf("NGIT_NATS_LISTEN is %q: %w; choose another address, or none", o.Listen, err)
		}
		l.Close()
		opts.DontListen, opts.Port = false, l.Addr().(*net.TCPAddr).Port
		opts.Host, _, _ = net.SplitHostPort(o.Listen) // it can be listened on
		if strings.HasSuffix(o.Listen, ":0") {
			opts.Port = server.RANDOM_PORT
		}
	}
	if b.server, err = server.NewServer(opts); err != nil {
		return fmt.Errorf("configure the embedded NATS: %w", err)
	}
	b.server.SetLoggerV2(serverLog{o.Log, o.Dir, b.lose, func() { b.setFull(ErrFull) }}, false, false, false)
	go b.server.Start()
	if !b.server.ReadyForConnections(30 * time.Second) {
		return errors.New("start the embedded NATS: not ready after 30 seconds")
	}
	if !b.server.JetStreamEnabled() {
		return fmt.Errorf("start the embedded NATS: JetStream could not use the folder %s", o.Dir)
	}
	if !o.Sizing.MemoryOnly {
		b.keeping.Go(func() { b.watch(b.open, o.Dir, o.Log) })
	}
	return nil
}

// leastStore is the least that the embedded server may store, in bytes, however small its disk is:
// the streams that have bounds reserve a quarter of it.
const leastStore = 1 << 30

// storeLimit is how much the embedded server may store on a disk of a size.
func storeLimit(size int64) int64 { return max(size/4*3, leastStore) }

// serverUsers are the options of an embedded server with its users. Without a password every
// connection is the same user. The streams are in the same account as with one, so that an operator
// can set a password, or remove it, on the same data. The user is a key, because the server warns
// of a user with an empty password.
//
// With a password the users are the operator, `tendril import` with the same password, and this
// process, whose password is random. The hashes are in memory only, so passwords can be tried only
// through the server: a higher cost would be the server's own, for each connection.
func (b *Bus) serverUsers(password string) (*server.Options, error) {
	opts := &server.Options{}
	if password == "" {
		key, err := nkeys.CreateUser()
		if err != nil {
			return nil, fmt.Errorf("make a user of the embedded NATS: %w", err)
		}
		user, err := key.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("make a user of the embedded NATS: %w", err)
		}
		return opts, opts.ProcessConfigString(fmt.Sprintf("accounts: {%s: {jetstream: enabled, users: [{nkey: %s}]}}\nno_auth_user: %s\n",
			proto.AccountCore, user, user))
	}
	b.inside = rand.Text()
	var users []logins.User
	for name, password := range map[string]string{insideUser: b.inside, proto.UserOperator: password,
		proto.UserImport: password} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			return nil, fmt.Errorf("hash the password of NATS user %s: %w", name, err)
		}
		users = append(users, logins.User{Name: name, Hash: string(hash)})
	}
	config, err := logins.Render(users)
	if err != nil {
		return nil, err
	}
	if err := opts.ProcessConfigString(config); err != nil {
		return nil, fmt.Errorf("configure the accounts of the embedded NATS: %w", err)
	}
	for _, u := range opts.Users {
		if u.Username == insideUser {
			u.Permissions = nil // this process may do everything
		}
	}
	return opts, nil
}

// serverLog passes the embedded server's log on; its notices about itself are debug to us. It is
// also how a failed write is noticed: the server tells of it in no other way, and writes nothing
// more to that stream until it is started again.
type serverLog struct {
	log  *slog.Logger
	dir  string
	lose func(error)
	full func()
}

// failedWrite begins what the server logs when it could not write a message to its disk.
const failedWrite = "JetStream failed to store a msg on stream"

func (l serverLog) Noticef(format string, v ...any) { l.Debugf(format, v...) }
func (l serverLog) Warnf(format string, v ...any)   { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any)  { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Tracef(format string, v ...any)  { l.Debugf(format, v...) }
func (l serverLog) Debugf(format string, v ...any)  { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }

func (l serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error("nats: " + text)
	switch {
	case strings.Contains(text, syscall.ENOSPC.Error()):
		l.full()
	case strings.HasPrefix(text, failedWrite):
		l.lose(fmt.Errorf("the event log in %s cannot be written: %s", l.dir, text))
	}
}
