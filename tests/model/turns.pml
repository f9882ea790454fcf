/* Turns: broker, sessions and direct handoffs, for SPIN. tests/model/test_spin.py runs it.

   LANES lanes that run at the same time, SESSIONS sessions of one user that ask a few times each,
   brokers that end and start, sessions that are killed, interrupts, and direct handoffs. Each broker
   makes the memory of its lanes anew, so a holder that comes back to another one has its memory for itself, and counts for one of the new lanes. The model leaves out the content
   of memory, time and policies. The session that has waited longest is next, which stands for any
   policy that prevents starvation; a preemption request may come at any time while a session waits.

   Each step, and the code that it stands for (jupyter_gpushare/, csrc/core/):
     ask            turn.py obtain; broker/turns.py request; Scheduler::request
     take           dispatch.py take: Grant, Yield; a direct handoff, HandoffSlot.wait
     part           session.py boundary, leave; turn.py give_back; turns.py finish
     interrupt      turn.py withdraw: Finish before the Grant has come, or as it comes
     reconnect      registration.py, link.py connect; admission.py open; Scheduler::open
     hear           broker/transport/connection.py buffer_updated, connection_lost; service.py handle, lost
     assign         pass.cpp run, start_successor, grant
     ask_to_yield   pass.cpp ask_to_yield, preemption.cpp heir; broker/grants/grants.py _successor
     broker_ends    a crash, or an end in good order: what it had sent may arrive or not
     recovered      recovery.py try_to_end: all holders in the journal have come back, or have
                    ended; a session without a turn may be away still. The lease that it waits at
                    most does not pass
     killed         the end of a kernel: what it had said is heard, or the last of it is lost

   With -DFORGETS_SUCCESSORS the broker grants another lane to a session that it has named as the
   successor in one, as soon as that lane is free. With -DOLD_LETTERS a session takes
   direct handoffs that were written before it came to this broker, with
   -DFORGETS the broker does not grant when a turn ends: then SPIN must find an error. */

#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef LANES
#define LANES 1 /* that run at the same time */
#endif
#ifndef BROKER_ENDS
#define BROKER_ENDS 1 /* how often */
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 1
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#ifndef ASKS
#define ASKS 3 /* of each session */
#endif
#define ROOM 6 /* messages on their way in one direction; that it is enough is asserted */
#define NOBODY 255

mtype = { open, request, finish, grant, yield, gone };
mtype = { idle, waiting, running };

/* On their way: to the broker (kind, turn, state), from it (kind, turn, memory, successor,
   its turn, its key), and direct handoffs (turn, key, memory). The system keeps both ends of a connection
   that is cut apart. */
chan said[SESSIONS] = [ROOM] of { mtype, byte, mtype };
chan told[SESSIONS] = [ROOM] of { mtype, byte, byte, byte, byte, byte };
chan handoff_tokens[SESSIONS] = [1] of { byte, byte, byte };
bool is_cut[SESSIONS]; /* the broker reads no more of its messages, and sends no more */

byte broker_ends;

/* The state of sessions. */
mtype state[SESSIONS] = idle;
byte turn[SESSIONS];
bool is_asked[SESSIONS];
byte successor[SESSIONS] = NOBODY, successors_memory[SESSIONS];
byte successors_turn[SESSIONS], successors_key[SESSIONS];
byte key[SESSIONS]; /* of its handoff slot: another one for each connection */
#define memory_of(lane_of_broker) (broker_ends * LANES + lane_of_broker)
byte memory[SESSIONS]; /* of a lane, in which it runs */
byte holders, holders_in[LANES * (BROKER_ENDS + 1)];

/* The state of the broker. */
bool is_known[SESSIONS];
mtype seen[SESSIONS] = idle;
byte seen_lane[SESSIONS] = NOBODY;
byte seen_turn[SESSIONS], seen_key[SESSIONS];
byte line[SESSIONS] = NOBODY; /* waiting sessions, the longest first */
bool was_asked[SESSIONS];
byte next[SESSIONS] = NOBODY, nexts_turn[SESSIONS]; /* as the yield named it */
byte due = NOBODY, due_turn, due_lane;
bool is_on_roll[SESSIONS]; /* it had a turn when a broker ended, or may have had it by direct handoff */
bool is_recovering;
byte kills, interrupts;

/* --- the broker: each of these is part of one step ------------------------------------------- */

inline tell(i, kind, t, where, s, st, k) {
	if
	:: is_cut[i]
	:: else -> assert(nfull(told[i])); told[i] ! kind, t, where, s, st, k
	fi
}

inline leave_line(i) {
	b = 0; c = 0;
	do
	:: b < SESSIONS ->
		if
		:: line[b] != i && line[b] != NOBODY -> line[c] = line[b]; c++
		:: else
		fi;
		b++
	:: else -> break
	od;
	do
	:: c < SESSIONS -> line[c] = NOBODY; c++
	:: else -> break
	od
}

inline join_line(i) {
	c = 0;
	do
	:: line[c] != NOBODY -> c++
	:: else -> break
	od;
	line[c] = i
}

inline end_wait(i) { leave_line(i); seen[i] = idle }

inline end_turn(i) {
	due = next[i]; due_turn = nexts_turn[i]; due_lane = seen_lane[i]; seen_lane[i] = NOBODY;
	next[i] = NOBODY; was_asked[i] = false; seen[i] = idle
}

inline begin_wait(i, t) { seen[i] = waiting; seen_turn[i] = t; join_line(i) }

inline begin_turn(i, where) {
	end_wait(i);
	seen[i] = running; seen_lane[i] = where;
	tell(i, grant, seen_turn[i], memory_of(where), NOBODY, 0, 0)
}

inline find_free_lane(result) { /* `NOBODY`: there is none */
	result = 0; b = 0;
	do
	:: b < SESSIONS && seen[b] == running && seen_lane[b] == result -> result++; b = 0
	:: b < SESSIONS && !(seen[b] == running && seen_lane[b] == result) -> b++
	:: else -> break
	od;
	if
	:: result >= LANES -> result = NOBODY
	:: else
	fi
}

#ifdef FORGETS_SUCCESSORS
#define is_successor(i, d) false
#else
#define is_successor(i, d) (seen[i] == running && next[i] == d && nexts_turn[i] == seen_turn[d])
#endif

inline find_first_in_line(result) { /* that is named as no running session's successor */
	c = 0; result = NOBODY;
	do
	:: c == SESSIONS || line[c] == NOBODY -> break
	:: else ->
		b = 0;
		do
		:: b < SESSIONS && !is_successor(b, line[c]) -> b++
		:: else -> break
		od;
		if
		:: b == SESSIONS -> result = line[c]; break
		:: else -> c++
		fi
	od
}

inline assign() {
	if
	:: due != NOBODY && seen[due] == waiting && seen_turn[due] == due_turn ->
		d = due; begin_turn(d, due_lane)
	:: else
	fi;
	due = NOBODY; due_lane = 0;
	do
	:: true ->
		find_free_lane(free_lane); find_first_in_line(d);
		if
		:: free_lane != NOBODY && !is_recovering && d != NOBODY -> begin_turn(d, free_lane)
		:: else -> break
		fi
	od
}

inline vacate(i) {
	if
	:: seen[i] == running -> end_turn(i)
	:: seen[i] == waiting -> end_wait(i)
	:: else
	fi
}

inline hear(i) {
	if
	:: said[i] ? request, t, s ->
		if
		:: seen[i] == running -> end_turn(i)
		:: else
		fi;
		if
		:: seen[i] == waiting -> seen_turn[i] = t
		:: else -> begin_wait(i, t)
		fi
	:: said[i] ? finish, t, s ->
		if
		:: seen_turn[i] == t -> vacate(i)
		:: else
		fi
	:: said[i] ? open, t, s ->
		vacate(i);
		is_known[i] = true; due = NOBODY; seen_turn[i] = t; seen_key[i] = key[i];
		is_on_roll[i] = false;
		if
		:: s == running -> find_free_lane(free_lane); seen[i] = running; seen_lane[i] = free_lane
		:: s == waiting -> begin_wait(i, t)
		:: else
		fi
	:: said[i] ? gone, t, s -> vacate(i); is_known[i] = false
	fi;
	t = 0; s = idle
}

proctype Hears(byte i) { /* a connection of the broker */
	byte t, b, c, d, free_lane; mtype s;
	do
	:: d_step { nempty(said[i]) ->
		hear(i);
#ifdef FORGETS
		if
		:: seen[i] != idle -> assign()
		:: else -> due = NOBODY
		fi;
#else
		assign();
#endif
		b = 0; c = 0; d = 0; free_lane = 0 }
	od
}

#if SESSIONS == 2
#define any(what) (what(0) || what(1))
#define all(what) (what(0) && what(1))
#else
#define any(what) (what(0) || what(1) || what(2))
#define all(what) (what(0) && what(1) && what(2))
#endif
#define runs_unasked(i) (seen[i] == running && !was_asked[i])
#define has_come_back(i) (!is_on_roll[i])

active proctype Alarm() { /* of the broker: turns that have lasted, and the end of its recovery */
	byte b, c, d, free_lane;
	do
	:: d_step { line[0] != NOBODY && any(runs_unasked) ->
		find_first_in_line(d);
		b = 0;
		do
		:: !runs_unasked(b) -> b++
		:: else -> break
		od;
		if
		:: d != NOBODY ->
			was_asked[b] = true; next[b] = d; nexts_turn[b] = seen_turn[d];
			tell(b, yield, seen_turn[b], memory_of(seen_lane[b]), d, seen_turn[d], seen_key[d])
		:: else
		fi;
		b = 0; c = 0; d = 0 }
	:: d_step { is_recovering && all(has_come_back) ->
		is_recovering = false;
		assign();
		b = 0; c = 0; d = 0; free_lane = 0 }
	od
}

active proctype Fate() { /* of the broker */
	byte i, kind, b;
	do
	:: atomic { broker_ends < BROKER_ENDS ->
		broker_ends++;
		i = 0;
		do
		:: i < SESSIONS ->
			is_on_roll[i] = is_on_roll[i] || seen[i] == running;
			if
			:: next[i] != NOBODY -> is_on_roll[next[i]] = true
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < SESSIONS ->
			is_cut[i] = true;
			do
			:: nempty(said[i]) -> said[i] ? _, _, _
			:: empty(said[i]) -> break
			od;
			if /* its messages arrive or not */
			:: do
			   :: nempty(told[i]) -> told[i] ? _, _, _, _, _, _
			   :: empty(told[i]) -> break
			   od
			:: true
			fi;
			is_known[i] = false; seen[i] = idle; seen_lane[i] = NOBODY; seen_turn[i] = 0; seen_key[i] = 0;
			line[i] = NOBODY; was_asked[i] = false; next[i] = NOBODY; nexts_turn[i] = 0;
			i++
		:: else -> break
		od;
		i = 0; is_recovering = true }
	od
}

/* --- sessions -------------------------------------------------------------------------------- */

inline say(i, kind) {
	if
	:: is_cut[i]
	:: else -> assert(nfull(said[i])); said[i] ! kind, turn[i], state[i]
	fi
}

inline begin(i, where) {
	state[i] = running; memory[i] = where;
	holders++; holders_in[where]++;
	assert(holders <= LANES && holders_in[where] == 1)
}

inline end(i) { holders_in[memory[i]]--; holders--; memory[i] = 0; state[i] = idle }

inline forget_asked(i) {
	is_asked[i] = false; successor[i] = NOBODY; successors_memory[i] = 0;
	successors_turn[i] = 0; successors_key[i] = 0
}

inline part(i) {
	if
	:: successor[i] != NOBODY ->
		if
		:: nfull(handoff_tokens[successor[i]]) ->
			handoff_tokens[successor[i]] ! successors_turn[i], successors_key[i], successors_memory[i]
		:: full(handoff_tokens[successor[i]])
		fi
	:: else
	fi;
	forget_asked(i);
	end(i);
	say(i, finish)
}

#ifdef OLD_LETTERS
#define is_mine(i, k) true
#else
#define is_mine(i, k) (k == key[i])
#endif

proctype Session(byte i) {
	byte t, where, s, st, k; mtype kind; byte leaves;
	do
	/* ask */
	:: atomic { state[i] == idle && turn[i] < ASKS ->
		turn[i]++; state[i] = waiting;
		say(i, request) }
	/* take a direct handoff */
	:: atomic { state[i] == waiting && nempty(handoff_tokens[i]) ->
		handoff_tokens[i] ? t, k, s;
		if
		:: is_mine(i, k) && t == turn[i] -> begin(i, s)
		:: else
		fi;
		t = 0; k = 0; s = 0 }
	/* take a message of the broker */
	:: atomic { nempty(told[i]) ->
		told[i] ? kind, t, where, s, st, k;
		if
		:: kind == grant && t == turn[i] && state[i] == waiting -> begin(i, where)
		:: kind == yield && t == turn[i] && state[i] == running ->
			is_asked[i] = true; successor[i] = s; successors_memory[i] = where;
			successors_turn[i] = st; successors_key[i] = k
		:: else
		fi;
		t = 0; where = 0; s = 0; st = 0; k = 0; kind = 0 }
	/* reconnect */
	:: atomic { is_cut[i] && empty(told[i]) && empty(said[i]) ->
		is_cut[i] = false; key[i]++;
		forget_asked(i);
		say(i, open) }
	/* part: at a boundary, or as a cell ends */
	:: atomic { state[i] == running && is_asked[i] -> part(i) }
	:: atomic { state[i] == running && leaves < LEAVES -> leaves++; part(i) }
	/* interrupt: not of session 0, which is to be served */
	:: atomic { i > 0 && interrupts < INTERRUPTS && state[i] == waiting ->
		interrupts++; state[i] = idle;
		say(i, finish) }
	/* killed; then there is another one in its place */
	:: atomic { i > 0 && kills < KILLS ->
		kills++;
		if
		:: state[i] == running -> end(i)
		:: else
		fi;
		do
		:: nempty(handoff_tokens[i]) -> handoff_tokens[i] ? _, _, _
		:: empty(handoff_tokens[i]) -> break
		od;
		do
		:: nempty(told[i]) -> told[i] ? _, _, _, _, _, _
		:: empty(told[i]) -> break
		od;
		if /* its messages are heard or not */
		:: do
		   :: nempty(said[i]) -> said[i] ? _, _, _
		   :: empty(said[i]) -> break
		   od
		:: true
		fi;
		state[i] = idle; is_on_roll[i] = false;
		forget_asked(i);
		say(i, gone);
		is_cut[i] = true }
	od
}

init {
	byte i;
	atomic {
		do
		:: i < SESSIONS ->
			is_cut[i] = true; successor[i] = NOBODY; line[i] = NOBODY; next[i] = NOBODY;
			run Hears(i); run Session(i);
			i++
		:: else -> break
		od
	}
}

/* A waiting session is served, if each party that can continue does so at last. */
ltl served { [] (state[0] == waiting -> <> (state[0] == running)) }
