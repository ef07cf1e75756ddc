# ruff: noqa: RUF001 - letters of many scripts look alike
"""Which answers say that they have none, in many languages, and which only look so."""

import time

import pytest
from hypothesis import given, strategies as st

from faithful_search.abstention import claims_of, declines

ENGLISH = """
I don't know.
I don't know who wrote "Call Me Maybe".
The sources do not say who sang Perhaps Love.
I could not find it, perhaps because the page is down.
I do not know
i dont know
I could not find this out.
unknown
Unknown.
N/A
The sources do not say.
The answer is not known.
No evidence found.
I'm sorry, but I cannot answer this question based on the provided documents.
Based on the search results, there is no information about the CEO.
The provided passages do not mention the date of birth.
Unfortunately, I was unable to find any information about this.
I couldn’t find a reliable source for this. Please check the official website.
I am unable to determine the answer from the given context.
The question cannot be answered with the available evidence.
There is not enough information to answer.
Insufficient information.
I have no idea.
None of the sources mention her birthplace.
It is unclear from the evidence who wrote it.
The date of the battle is not mentioned in the documents.
I can't assist with that.
I'm not sure.
Cannot be determined.
The search tool returned only an error, so I cannot say.
As an AI language model, I cannot provide that.
After searching several times, I could not find the answer.
Sorry I don't know
No information available.
I searched. I could not find it.
""".strip().splitlines()

OTHERS = {
    "German": "Ich weiß es nicht.|Das weiß ich leider nicht.|Die Quellen sagen dazu nichts.|Unbekannt"
    "|Leider konnte ich das nicht herausfinden.|Keine Ahnung."
    "|Aus den Dokumenten geht nicht hervor, wer der Autor ist.",
    "French": "Je ne sais pas.|Je n'ai pas trouvé la réponse.|Inconnu|Aucune information disponible."
    "|Désolé, je ne peux pas répondre à cette question.|Les sources ne précisent pas la date.",
    "Spanish": "No lo sé.|No sé la respuesta.|No encontré información sobre esto.|Desconocido"
    "|Lo siento, no puedo responder a esta pregunta.|Las fuentes no mencionan la fecha.",
    "Portuguese": "Não sei.|Não encontrei informações.|As fontes não dizem.",
    "Italian": "Non lo so.|Non ho trovato informazioni.|Le fonti non lo dicono.",
    "Dutch": "Ik weet het niet.|Ik kon het antwoord niet vinden.|Onbekend",
    "Swedish": "Jag vet inte.|Okänt",
    "Norwegian": "Jeg vet ikke.",
    "Danish": "Det ved jeg ikke.",
    "Finnish": "En tiedä.|Ei tiedossa",
    "Polish": "Nie wiem.|Nie znalazłem odpowiedzi.|Brak informacji.",
    "Czech": "Nevím.|Není známo.",
    "Slovak": "Neviem.",
    "Russian": "Я не знаю.|Не удалось найти ответ.|Неизвестно|Нет информации.",
    "Ukrainian": "Я не можу відповісти.|Невідомо",
    "Greek": "Δεν ξέρω.|Δεν γνωρίζω την απάντηση.",
    "Turkish": "Bilmiyorum.|Bu konuda bilgi bulunamadı.",
    "Hungarian": "Nem tudom.",
    "Romanian": "Nu știu.",
    "Croatian": "Ne znam.",
    "Arabic": "لا أعرف|لا أعلم.|لم أجد إجابة|لا توجد معلومات كافية",
    "Persian": "نمی‌دانم",
    "Hebrew": "לא יודע|אני לא יודעת.",
    "Hindi": "मुझे नहीं पता।|मुझे नहीं मालूम|जानकारी उपलब्ध नहीं है।",
    "Bengali": "আমি জানি না।",
    "Tamil": "தெரியாது",
    "Vietnamese": "Tôi không biết.|Không tìm thấy thông tin.",
    "Indonesian": "Saya tidak tahu.|Tidak diketahui",
    "Swahili": "Sijui.",
    "Thai": "ไม่ทราบ|ฉันไม่รู้|ไม่พบข้อมูล",
    "Chinese": "不知道。|我不知道|未知|无法回答该问题。|根据提供的资料，无法确定答案。"
    "|抱歉，我没有找到相关信息。|我無法回答這個問題",
    "Japanese": "わかりません。|分かりません|情報が見つかりませんでした。|答えられません。|不明です。",
    "Korean": "모르겠습니다.|알 수 없습니다.|정보를 찾을 수 없습니다.",
}

CLAIMING = """
Canberra
Unknown Pleasures
The Unknown
Nothing Compares 2 U
None of the above
No
No.
Yes
0
12
E1
It was composed between 1822 and 1824.
Not Without My Daughter
No Country for Old Men
None but the Lonely Heart
Without You I'm Nothing
Sorry, Wrong Number
Information Society
Evidence of Absence
The search for truth is not over.
I don't know, but it may be Paris.
I could not find the date. It was composed in Vienna.
Paris is not the capital of Germany.
He did not have children.
There is no snow in Singapore.
In 1998, the team did not win any match.
Based on the evidence, the capital is Rome.
According to E1, it was not built in 1887.
Der Turm steht nicht in Paris, sondern in Lyon.
Ich weiß es nicht genau, aber es ist Lyon.
La torre no está en París.
No hay playas en Madrid.
La capitale n'est pas Lyon.
東京
北京没有海。
中国没有任何海外殖民地。
我不确定，但是答案是北京。
彼は東京に住んでいない。
Он не был в Риме.
لا توجد أشجار في الصحراء
Dia tidak bisa berenang.
서울
""".strip().splitlines()


@pytest.mark.parametrize("answer", ENGLISH)
def test_an_english_answer_that_has_none_declines(answer):
    assert declines(answer)


@pytest.mark.parametrize(
    ("language", "answer"),
    [(language, answer) for language, all_ in OTHERS.items() for answer in all_.split("|")],
)
def test_an_answer_that_has_none_declines_in_other_languages(language, answer):
    assert declines(answer)


@pytest.mark.parametrize("answer", CLAIMING)
def test_an_answer_that_claims_something_does_not_decline(answer):
    assert not declines(answer)


@pytest.mark.parametrize("nothing", [None, "", " ", "?", "—"])
def test_where_nothing_is_said_nothing_is_claimed(nothing):
    assert declines(nothing)


def test_only_sentences_that_claim_something_are_left():
    answer = "The sources do not say when. He was born in Ulm."
    assert claims_of(answer) == ["He was born in Ulm."]


@given(st.text(max_size=300))
def test_any_text_either_declines_or_claims(text):
    assert declines(text) in (True, False)


@pytest.mark.parametrize(
    "piece", ["I do not ", "the sources ", "sorry, but ", "不知道", "not found "]
)
def test_a_long_answer_takes_no_longer_than_its_length(piece):
    begun = time.process_time()
    declines(piece * 20_000)
    assert time.process_time() - begun < 1.0


def test_a_finding_that_begins_with_no_is_a_claim():
    assert not declines("No results that could be repeated")
