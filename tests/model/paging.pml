/* Memory on the device: broker and sessions, for SPIN. tests/model/test_spin.py runs it.

   SESSIONS sessions of one user, each with as much memory as the others, a device that has room for
   the memory of CAPACITY of them, and LANES lanes that run at the same time. Each runs a few cells,
   asks for turns in them and between them, and is paged out, paged in, told to give memory back and
   told to be released by a broker that hears and is heard late. A session begins as a released one.
   The model leaves out ends of brokers and sessions, the lane of a turn (turns.pml has both), the
   memory of lanes, time and policies. The session that has waited longest is served first.

   Each step, and the code that it stands for (jupyter_gpushare/, csrc/core/):
     begin_cell     residency.py cell_begins; broker/turns.py busy; Scheduler::set_busy
     end_cell       residency.py cell_ends
     ask            session.py enter, in a cell or in a thread between cells
     ask_for_place  residency.py ask_for_place; admission.py open; Scheduler::open
     take_page_out  residency.py on_page_out; turns.py paged_out, stays_in; paging.cpp page_out
     take_rest      residency.py on_rest; admission.py rest
     take_give_back dispatch.py _on_give_back
     report         session.py declare, leave; demands.py report
     part           session.py boundary, leave; turn.py give_back; with a direct handoff to the successor
     interrupt      turn.py withdraw; link.py break_off, where it waits for its place or its memory
     hear           service.py handle; scheduler.cpp
     assign         pass.cpp start_successor, admit, grant, ask_to_page_out
     Alarm          actions of the broker by itself: pass.cpp ask_to_yield, give_up_page_outs,
                    scheduler.cpp `dismiss`, idle.py

   Each of these is a bug, and SPIN must find an error:
     -DRESTS_AND_TAKES      a released session takes what was sent to it before its release
     -DRESTS_AND_SPEAKS     a released session sends what only an admitted session may send
     -DRESTS_WHILE_WAITING  a session is released while a thread of it waits for a turn between cells
     -DOUT_IN_ITS_TURN      a session pages out in the middle of its turn
     -DOUT_TWICE            a session that is out pages out once more, and comes in where that fails
     -DOLD_ANSWERS          the broker takes an old answer for the answer to a newer request
     -DFORGETS_WHO_WAITS    the broker does not page in a session that has paged out as it waited
     -DROOM_TOO_EARLY       the broker gives away the memory of a session that it asks to page out
     -DROOM_OF_SUCCESSORS   ... or of a successor that has paged out before its turn
     -DSUCCESSORS_MAKE_WAY  the broker evicts successors
     -DKEEPS_ASKING         a cell that begins does not cancel the request of the broker */

#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef CAPACITY
#define CAPACITY 1 /* sessions whose memory fits */
#endif
#ifndef LANES
#define LANES 1 /* that run at the same time */
#endif
#ifndef CELLS
#define CELLS 1 /* of each session */
#endif
#ifndef ASKS
#define ASKS 1 /* of each session */
#endif
#ifndef DISMISSALS
#define DISMISSALS 1 /* the number of each of these, by all together */
#endif
#ifndef RESTS
#define RESTS 1
#endif
#ifndef GIVE_BACKS
#define GIVE_BACKS 0
#endif
#ifndef REPORTS
#define REPORTS 0 /* of users' threads, at any time */
#endif
#ifndef FAILURES
#define FAILURES 0 /* to page out, as where a disk is full */
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 0 /* of the broker, to wait for a session that is to page out */
#endif
#ifndef WAYS
#define WAYS 0 /* by sessions that wait for turns, for others that wait for memory */
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 0
#endif
#define ROOM 8 /* messages on their way in one direction; that it is enough is asserted */
#define NOBODY 255

/* To the broker: kind, turn (or how often it was paged in), connection, whether its memory is out,
   a cell runs, it waits. */
mtype = { open, busy, not_busy, request, finish, paged_out, stays_in, rests, report };
/* From the broker: kind, turn, connection, successor, its turn, its connection. */
mtype = { opened, page_out, page_in, give_back, rest, grant, yield };
/* The activity of a session. */
mtype = { idle, opening, returning, waiting, holding };
/* Where the broker thinks that its memory is. */
mtype = { in, leaving, out, coming };

chan said[SESSIONS] = [ROOM] of { mtype, byte, byte, bool, bool, bool };
chan told[SESSIONS] = [ROOM] of { mtype, byte, byte, byte, byte, byte };
chan handoff_tokens[SESSIONS] = [1] of { byte, byte }; /* turn, connection */

/* The state of sessions. */
mtype state[SESSIONS] = idle, then[SESSIONS] = idle; /* once it is admitted */
bool is_busy[SESSIONS], is_out[SESSIONS] = true, is_resting[SESSIONS] = true;
byte turn[SESSIONS], connection[SESSIONS], cells[SESSIONS];
byte page_ins[SESSIONS]; /* since its admission */
byte successor[SESSIONS] = NOBODY, successors_turn[SESSIONS], successors_connection[SESSIONS];
byte failures, interrupts, reports;

/* The state of the broker. */
mtype residence[SESSIONS] = out;
bool is_known[SESSIONS], seen_busy[SESSIONS], has_place[SESSIONS], has_refused[SESSIONS];
byte seen_connection[SESSIONS], told_page_ins[SESSIONS];
byte requested[SESSIONS], granted[SESSIONS]; /* turns; 0: none */
byte last[SESSIONS]; /* turn that it has heard of on this connection */
byte line[SESSIONS] = NOBODY; /* sessions that wait for memory or for a turn, the longest first */
byte next[SESSIONS] = NOBODY, nexts_turn[SESSIONS]; /* as the yield named it */
bool was_asked[SESSIONS];
byte due = NOBODY, due_turn;
byte dismissals, rests_told, give_backs, give_ups, ways;

#if SESSIONS == 2
#define any(what) (what(0) || what(1))
#define count(what) (what(0) + what(1))
#else
#define any(what) (what(0) || what(1) || what(2))
#define count(what) (what(0) + what(1) + what(2))
#endif
#define is_in(i) (!is_out[i])
#define placed(i) has_place[i]
#define runs(i) (granted[i] != 0)
#define is_leaving(i) (residence[i] == leaving)
#define waits_for_room(i) (residence[i] == coming && !has_place[i])
#define is_named_by(j, i) (granted[j] && next[j] == i && nexts_turn[j] == requested[i])
#if SESSIONS == 2
#define is_promised(i) (requested[i] && (is_named_by(0, i) || is_named_by(1, i)))
#else
#define is_promised(i) (requested[i] && (is_named_by(0, i) || is_named_by(1, i) || is_named_by(2, i)))
#endif
#define can_leave(i) (has_place[i] && residence[i] == in && !has_refused[i] && !granted[i])
#define is_idle(i) (can_leave(i) && !seen_busy[i] && !requested[i])
#ifdef SUCCESSORS_MAKE_WAY
#define may_make_way(i) (can_leave(i) && requested[i])
#else
#define may_make_way(i) (can_leave(i) && requested[i] && !is_promised(i))
#endif
#define can_run(i) (requested[i] && has_place[i] && residence[i] == in && !is_promised(i))

/* --- the broker: each of these is part of one step ------------------------------------------- */

inline tell(i, kind, t, s, st, k) {
	assert(nfull(told[i])); told[i] ! kind, t, seen_connection[i], s, st, k
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

inline join_line(i) { /* unless it is in it */
	c = 0;
	do
	:: line[c] != NOBODY && line[c] != i -> c++
	:: else -> break
	od;
	line[c] = i
}

inline call_back(i) { /* it needs its memory */
	if
	:: residence[i] == leaving -> residence[i] = in
	:: residence[i] == out -> residence[i] = coming; join_line(i)
	:: else
	fi
}

inline bring_in(i) {
	residence[i] = in;
	if
	:: !requested[i] -> leave_line(i)
	:: else
	fi;
	told_page_ins[i]++;
	tell(i, page_in, 0, NOBODY, 0, 0)
}

inline begin_turn(i) {
	if
	:: residence[i] == out || residence[i] == coming -> bring_in(i)
	:: else
	fi;
	has_place[i] = true; granted[i] = requested[i]; requested[i] = 0;
	leave_line(i);
	tell(i, grant, granted[i], NOBODY, 0, 0)
}

inline end_turn(i) {
	due = next[i]; due_turn = nexts_turn[i];
	next[i] = NOBODY; nexts_turn[i] = 0; was_asked[i] = false; granted[i] = 0
}

inline end_wait(i) {
	requested[i] = 0;
	if
	:: seen_busy[i] && residence[i] == leaving -> residence[i] = in
	:: !seen_busy[i] && residence[i] == coming -> residence[i] = out
	:: else
	fi;
	if
	:: residence[i] != coming -> leave_line(i)
	:: else
	fi
}

inline vacate(i) {
	if
	:: granted[i] -> end_turn(i)
	:: else
	fi;
	requested[i] = 0; has_place[i] = false; has_refused[i] = false; last[i] = 0;
	residence[i] = out;
	leave_line(i)
}

inline ask_to_leave(i) {
	residence[i] = leaving;
#ifdef ROOM_TOO_EARLY
	has_place[i] = false;
#endif
	tell(i, page_out, 0, NOBODY, 0, 0)
}

/* in the line */
#define find_first(result, that) \
	b = 0; result = NOBODY; \
	do \
	:: b == SESSIONS || line[b] == NOBODY -> break \
	:: else -> \
		d = line[b]; \
		if \
		:: that(d) -> result = d; break \
		:: else -> b++ \
		fi \
	od

/* of all */
#define find(result, that) \
	b = 0; result = NOBODY; \
	do \
	:: b < SESSIONS && that(b) -> result = b; break \
	:: b < SESSIONS && !that(b) -> b++ \
	:: else -> break \
	od

inline assign() {
	if
	:: due != NOBODY && requested[due] && requested[due] == due_turn -> begin_turn(due)
	:: else
	fi;
	due = NOBODY; due_turn = 0;
	do /* admit */
	:: true ->
		find_first(e, waits_for_room);
		if
		:: e != NOBODY && count(placed) < CAPACITY -> has_place[e] = true; bring_in(e)
		:: else -> break
		fi
	od;
	do /* grant */
	:: true ->
		find_first(e, can_run);
		if
		:: e != NOBODY && count(runs) < LANES -> begin_turn(e)
		:: else -> break
		fi
	od;
	find_first(e, waits_for_room);
	if
	:: e != NOBODY && !any(is_leaving) ->
		find(e, is_idle);
		if
		:: e != NOBODY -> ask_to_leave(e)
		:: else
		fi
	:: else
	fi;
	b = 0; c = 0; d = 0; e = 0
}

#ifdef OLD_ANSWERS
#define is_stale(i, n) false
#else
#define is_stale(i, n) (n != told_page_ins[i])
#endif
#ifdef FORGETS_WHO_WAITS
#define needs_its_memory(i) seen_busy[i]
#else
#define needs_its_memory(i) (seen_busy[i] || requested[i])
#endif
#ifdef ROOM_OF_SUCCESSORS
#define keeps_place(i) granted[i]
#else
#define keeps_place(i) (granted[i] || is_promised(i))
#endif

inline hear(i) {
	said[i] ? kind, t, k, is_out_there, is_busy_there, waits_there;
	assert(is_known[i] || kind == open); /* or its next cell would be refused for a message of this one */
	if
	:: kind == open ->
		vacate(i);
		is_known[i] = true; seen_connection[i] = k; seen_busy[i] = is_busy_there; due = NOBODY;
		told_page_ins[i] = 0;
		if
		:: is_out_there
		:: else -> residence[i] = in; has_place[i] = true /* it is counted in any case */
		fi;
		tell(i, opened, 0, NOBODY, 0, 0);
		if
		:: waits_there -> requested[i] = t; last[i] = t; join_line(i)
		:: else
		fi;
		if
		:: is_busy_there || waits_there -> call_back(i)
		:: else
		fi
	:: kind == busy ->
		seen_busy[i] = true; has_refused[i] = false;
#ifdef KEEPS_ASKING
		if
		:: residence[i] == out -> call_back(i)
		:: else
		fi
#else
		call_back(i)
#endif
	:: kind == not_busy ->
		seen_busy[i] = false;
		if
		:: residence[i] == coming && !requested[i] -> residence[i] = out; leave_line(i)
		:: else
		fi
	:: kind == request ->
		if
		:: t > last[i] ->
			if
			:: granted[i] -> end_turn(i)
			:: else
			fi;
			requested[i] = t; last[i] = t; join_line(i);
			call_back(i)
		:: else
		fi
	:: kind == finish ->
		if
		:: granted[i] == t -> end_turn(i)
		:: requested[i] == t -> end_wait(i)
		:: else
		fi
	:: kind == paged_out && is_stale(i, t) /* it was paged in after that */
	:: kind == paged_out && !is_stale(i, t) ->
		if
		:: residence[i] == in || residence[i] == leaving -> residence[i] = out
		:: else
		fi;
		if
		:: keeps_place(i) -> bring_in(i)
		:: else ->
			has_place[i] = false;
			if
			:: needs_its_memory(i) -> call_back(i)
			:: else
			fi
		fi
	:: kind == stays_in ->
		if
		:: residence[i] == leaving -> residence[i] = in; has_refused[i] = true
		:: else
		fi
	:: kind == rests -> vacate(i); is_known[i] = false
	:: kind == report
	fi;
	kind = 0; t = 0; k = 0; is_out_there = false; is_busy_there = false; waits_there = false
}

proctype Hears(byte i) { /* a connection of the broker */
	byte t, k, b, c, d, e; mtype kind; bool is_out_there, is_busy_there, waits_there;
	do
	:: d_step { nempty(said[i]) -> hear(i); assign() }
	od
}

#define runs_unasked(i) (granted[i] && !was_asked[i])
#define nothing_runs_in(i) (is_known[i] && !seen_busy[i] && !requested[i] && !granted[i])

proctype Alarm(byte i) { /* actions of the broker by itself, with one session */
	byte b, c, d, e;
	do
	:: d_step { runs_unasked(i) && line[0] != NOBODY ->
		find_first(e, can_run);
		if
		:: e != NOBODY ->
			was_asked[i] = true; next[i] = e; nexts_turn[i] = requested[e];
			tell(i, yield, granted[i], e, requested[e], seen_connection[e])
		:: else
		fi;
		b = 0; d = 0; e = 0 }
	:: d_step { dismissals < DISMISSALS && is_idle(i) -> dismissals++; ask_to_leave(i) }
	:: d_step { rests_told < RESTS && nothing_runs_in(i) ->
		rests_told++; tell(i, rest, 0, NOBODY, 0, 0) }
	:: d_step { give_backs < GIVE_BACKS && nothing_runs_in(i) ->
		give_backs++; tell(i, give_back, 0, NOBODY, 0, 0) }
	:: d_step { give_ups < GIVE_UPS && residence[i] == leaving ->
		give_ups++; residence[i] = in; has_refused[i] = true;
		assign() }
	:: d_step { ways < WAYS && may_make_way(i) && any(waits_for_room) && !any(is_leaving) ->
		ways++; ask_to_leave(i) }
	od
}

/* --- sessions -------------------------------------------------------------------------------- */

inline say_of(i, kind, number) {
	assert(nfull(said[i]));
	said[i] ! kind, number, connection[i], is_out[i], is_busy[i], then[i] == waiting
}

inline say(i, kind) { say_of(i, kind, turn[i]) }

inline say_where_known(i, kind) {
#ifdef RESTS_AND_SPEAKS
	say_of(i, kind, page_ins[i])
#else
	if
	:: is_resting[i]
	:: else -> say_of(i, kind, page_ins[i])
	fi
#endif
}

inline ask_for_place(i, what_then) {
	state[i] = opening; then[i] = what_then;
	say(i, open)
}

inline go_on(i) { /* with its memory, or none that it has to wait for */
	if
	:: state[i] == returning && !is_out[i] -> state[i] = idle
	:: else
	fi
}

inline begin_to_hold(i) { is_out[i] = false; state[i] = holding }

inline page(i) { /* out, or not */
	if
	:: true -> is_out[i] = true
	:: failures < FAILURES -> failures++; is_out[i] = false
	fi
}

#ifdef OUT_IN_ITS_TURN
#define is_at_work(i) (is_busy[i] && state[i] != waiting && state[i] != holding)
#else
#define is_at_work(i) (state[i] == holding || (is_busy[i] && state[i] != waiting))
#endif
#ifdef OUT_TWICE
#define stays_out(i) false
#else
#define stays_out(i) is_out[i]
#endif
#ifdef RESTS_WHILE_WAITING
#define may_rest(i) (!is_busy[i] && state[i] != holding)
#else
#define may_rest(i) (!is_busy[i] && state[i] == idle)
#endif

inline take_page_out(i) {
	if
	:: is_at_work(i)
	:: else ->
		if
		:: stays_out(i)
		:: else -> page(i)
		fi;
		if
		:: is_out[i] -> say_where_known(i, paged_out)
		:: else -> say_where_known(i, stays_in)
		fi
	fi
}

inline take_rest(i) {
	if
	:: may_rest(i) && !is_resting[i] ->
		if
		:: stays_out(i)
		:: else -> page(i)
		fi;
		if
		:: is_out[i] -> say(i, rests); is_resting[i] = true
		:: else -> say(i, stays_in)
		fi
	:: else
	fi
}

inline take_give_back(i) {
	if
	:: is_busy[i] || state[i] == holding || is_out[i]
	:: else -> say_where_known(i, report)
	fi
}

#ifdef RESTS_AND_TAKES
#define takes(i) true
#else
#define takes(i) (!is_resting[i])
#endif

inline take(i) {
	told[i] ? kind, t, k, s, st, sk;
	if
	:: k != connection[i] /* it has gone with its connection */
	:: else ->
		if
		:: kind == opened ->
			is_resting[i] = false; page_ins[i] = 0;
			state[i] = then[i]; then[i] = idle;
			if
			:: state[i] == waiting -> say(i, request)
			:: else
			fi
		:: kind == page_in && takes(i) -> is_out[i] = false; page_ins[i]++
		:: kind == page_out && takes(i) -> take_page_out(i)
		:: kind == give_back && takes(i) -> take_give_back(i)
		:: kind == rest && takes(i) -> take_rest(i)
		:: kind == grant && t == turn[i] && state[i] == waiting -> begin_to_hold(i)
		:: kind == yield && t == turn[i] && state[i] == holding ->
			successor[i] = s; successors_turn[i] = st; successors_connection[i] = sk
		:: else
		fi;
		go_on(i)
	fi;
	kind = 0; t = 0; k = 0; s = 0; st = 0; sk = 0
}

inline forget_successor(i) {
	successor[i] = NOBODY; successors_turn[i] = 0; successors_connection[i] = 0
}

inline part(i) {
	if
	:: successor[i] != NOBODY ->
		if
		:: nfull(handoff_tokens[successor[i]]) ->
			handoff_tokens[successor[i]] ! successors_turn[i], successors_connection[i]
		:: full(handoff_tokens[successor[i]])
		fi
	:: else
	fi;
	forget_successor(i);
	state[i] = idle;
	say(i, finish)
}

inline break_off(i) { /* and connect anew; its messages are heard before that, or never */
	if
	:: do
	   :: nempty(said[i]) -> said[i] ? _, _, _, _, _, _
	   :: empty(said[i]) -> break
	   od
	:: true
	fi;
	connection[i]++;
	ask_for_place(i, idle)
}

proctype Session(byte i) {
	byte t, k, s, st, sk; mtype kind;
	do
	:: atomic { nempty(told[i]) -> take(i) }
	/* take a direct handoff */
	:: atomic { state[i] == waiting && nempty(handoff_tokens[i]) ->
		handoff_tokens[i] ? t, k;
		if
		:: t == turn[i] && k == connection[i] -> begin_to_hold(i)
		:: else
		fi;
		t = 0; k = 0 }
	/* begin_cell */
	:: atomic { !is_busy[i] && state[i] == idle && cells[i] < CELLS ->
		cells[i]++; is_busy[i] = true;
		if
		:: is_resting[i] -> ask_for_place(i, returning)
		:: else -> say(i, busy); state[i] = returning; go_on(i)
		fi }
	/* end_cell */
	:: atomic { is_busy[i] && state[i] == idle -> is_busy[i] = false; say_where_known(i, not_busy) }
	/* ask */
	:: atomic { state[i] == idle && turn[i] < ASKS ->
		turn[i]++;
		if
		:: is_resting[i] -> ask_for_place(i, waiting)
		:: else -> say(i, request); state[i] = waiting
		fi }
	/* report */
	:: atomic { reports < REPORTS && state[i] == idle ->
		reports++; say_where_known(i, report) }
	/* part */
	:: atomic { state[i] == holding -> part(i) }
	/* interrupt: not of session 0, which is to be served */
	:: atomic { i > 0 && interrupts < INTERRUPTS && state[i] == waiting ->
		interrupts++; state[i] = idle;
		say(i, finish) }
	:: atomic { i > 0 && interrupts < INTERRUPTS && (state[i] == opening || state[i] == returning) ->
		interrupts++;
		break_off(i) }
	od
}

/* --- invariants ------------------------------------------------------------------------------ */

#define computes_without_memory(i) (state[i] == holding && is_out[i])
#define rests_with_memory(i) (is_resting[i] && !is_out[i])
#define has_heard_all(i) (empty(said[i]) && empty(told[i]) && state[i] == idle)
#define where_it_is(i) ((is_out[i] && residence[i] == out) || (!is_out[i] && residence[i] == in))
#define agrees(i) (is_resting[i] == !is_known[i] && (is_resting[i] || \
	((where_it_is(i) || is_busy[i]) && is_busy[i] == seen_busy[i] && residence[i] != leaving)))
#define disagrees(i) (has_heard_all(i) && !agrees(i))

active proctype Errors() {
	atomic {
		count(is_in) > CAPACITY || any(computes_without_memory) || any(rests_with_memory) ||
		any(disagrees) -> assert(false)
	}
}

init {
	byte i;
	atomic {
		do
		:: i < SESSIONS ->
			run Hears(i); run Alarm(i); run Session(i);
			i++
		:: else -> break
		od
	}
}

/* A waiting session is served, if each party that can continue does so at last. */
#define wants (state[0] == waiting || state[0] == returning || state[0] == opening)
ltl served { [] (wants -> <> !wants) }
